#!/bin/sh
# Before the files go: a removal stops the servers cleanly, an upgrade touches none. deb: remove, upgrade; rpm: 0, 1.
set -eu
case ${1:-} in
    remove | 0) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl stop ftstan-drill.timer ftstan.service 'ftstan@*.service' || true
    systemctl disable ftstan-drill.timer ftstan.service 2>/dev/null || true
fi
