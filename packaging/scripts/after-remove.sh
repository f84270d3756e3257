#!/bin/sh
# When the files are gone. remove (rpm: 0): what this package made below /usr/lib/ftstan. purge: also its directories, if
# nothing is in them. Datastores, logs, the user and its ids stay in any case: they are not the package's.
set -eu
case ${1:-} in
    remove | purge | 0) ;;
    *) exit 0 ;;
esac
rm -rf /usr/lib/ftstan
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
    for directory in /etc/ftstan /var/lib/ftstan /var/log/ftstan; do
        # A mount or a link is somebody else's.
        [ -d "$directory" ] && [ ! -L "$directory" ] || continue
        rmdir "$directory" 2>/dev/null || echo "ftstan: $directory is not empty and stays; remove it by hand" >&2
    done
fi
