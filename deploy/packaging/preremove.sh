#!/bin/sh
# Stops the agent where it is removed, and leaves it alone in an upgrade: dpkg calls this
# with "upgrade" then, and rpm with 1.
set -e
case "${1:-remove}" in
  remove | 0)
    if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
      systemctl disable --now gatehouse.socket gatehouse.service
    fi
    ;;
esac
