#!/bin/sh
# Makes the agent's user and directories. Nothing is started: a first installation has no
# configuration, and a restart of an agent that runs is the operator's to time.
set -e
root="${DPKG_ROOT:-}"

systemd-sysusers ${root:+--root="$root"} gatehouse.conf
systemd-tmpfiles ${root:+--root="$root"} --create gatehouse.conf

if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  if systemctl is-active --quiet gatehouse.service; then
    echo "gatehouse runs on as it was: \"systemctl kill --kill-whom=main --signal=USR2 gatehouse\" starts the new version without a refused connection, \"systemctl restart gatehouse\" drains it first"
  fi
fi
