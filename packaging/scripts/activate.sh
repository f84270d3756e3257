#!/bin/sh
# Behind the files of the package: the new version becomes the current one, and nothing that runs is touched.
# deb: postinst configure; rpm: posttrans, which comes when the former version's files are gone.
#
# A running server goes on in the directory of its version: its modules, and the NATS server that it starts again if it
# dies. That directory is made of hard links to what the package manager unpacked, so that no removal of files takes
# anything away from it; sweep removes it once nobody runs it.
set -eu
version=@VERSION@
home=/usr/lib/ftstan

case ${1:-} in
    abort-* | triggered) exit 0 ;;
esac

rm -rf "$home/$version.new"
cp -al "$home/dist/$version" "$home/$version.new" 2>/dev/null || {
    # A file system without hard links.
    rm -rf "$home/$version.new"
    cp -a "$home/dist/$version" "$home/$version.new"
}
if [ -e "$home/$version" ]; then
    # The same version again: a server that runs it keeps every file that it has open.
    rm -rf "$home/$version.old"
    mv "$home/$version" "$home/$version.old"
fi
mv -T "$home/$version.new" "$home/$version"
rm -rf "$home/$version.old"
before=$(readlink "$home/current" || true)
ln -sfn "$version" "$home/current.new"
mv -T "$home/current.new" "$home/current"

for directory in /var/lib/ftstan /var/log/ftstan; do
    [ -e "$directory" ] || install -d -m 0750 -o ftstan -g ftstan "$directory"
done

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
"$home/sweep" || true
if [ -n "$before" ] && [ "$before" != "$version" ]; then
    echo "ftstan: $version is installed; servers that run go on with $before until they are restarted" >&2
fi
