#!/bin/sh
# A purge takes what the agent has kept and logged; the user stays, as files elsewhere may
# be its own.
set -e
root="${DPKG_ROOT:-}"
if [ "${1:-}" = purge ]; then
  rm -rf "$root/var/lib/gatehouse" "$root/var/log/gatehouse" "$root/run/gatehouse"
  rmdir --ignore-fail-on-non-empty "$root/etc/gatehouse.d" 2>/dev/null || true
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
