#!/bin/sh
# Before the files of the package are there: the user that owns datastores. deb: install, upgrade; rpm: 1, 2.
#
# Its ids must be the same on every host of a group, because a network file system compares numbers. They are taken from
# FTSTAN_UID and FTSTAN_GID in the environment, else from uid= and gid= in /etc/ftstan/ids, else 842. A user or group
# that is there is never changed.
set -eu

fail() {
    echo "ftstan: $1" >&2
    echo "hint: $2" >&2
    exit 1
}

chosen() {
    # $1: environment's value, $2: key in the file
    if [ -n "$1" ]; then
        id=$1
    elif [ -r /etc/ftstan/ids ]; then
        id=$(sed -n "s/^[[:space:]]*$2[[:space:]]*=[[:space:]]*//p" /etc/ftstan/ids | tail -n 1 | tr -d '[:space:]')
    else
        id=
    fi
    case $id in
        *[!0-9]* | 0 | 0[0-9]*) fail "'$id' is no $2 for the user ftstan" \
            "write uid=NUMBER and gid=NUMBER into /etc/ftstan/ids, or set FTSTAN_UID and FTSTAN_GID" ;;
    esac
    echo "$id"
}

case ${1:-} in
    install | upgrade | 1 | 2) ;;
    *) exit 0 ;;
esac

uid=$(chosen "${FTSTAN_UID:-}" uid)
gid=$(chosen "${FTSTAN_GID:-}" gid)

if group=$(getent group ftstan); then
    has=$(echo "$group" | cut -d: -f3)
    if [ -n "$gid" ] && [ "$gid" != "$has" ]; then
        echo "ftstan: the group ftstan has gid $has and keeps it; $gid was asked for" >&2
    fi
else
    if taken=$(getent group "${gid:-842}"); then
        fail "gid ${gid:-842} belongs to the group ${taken%%:*}" \
            "choose one that is free on every host of the group: gid=NUMBER in /etc/ftstan/ids, or FTSTAN_GID"
    fi
    groupadd --system --gid "${gid:-842}" ftstan
fi

if user=$(getent passwd ftstan); then
    has=$(echo "$user" | cut -d: -f3)
    if [ -n "$uid" ] && [ "$uid" != "$has" ]; then
        echo "ftstan: the user ftstan has uid $has and keeps it; $uid was asked for" >&2
    fi
else
    if taken=$(getent passwd "${uid:-842}"); then
        fail "uid ${uid:-842} belongs to the user ${taken%%:*}" \
            "choose one that is free on every host of the group: uid=NUMBER in /etc/ftstan/ids, or FTSTAN_UID"
    fi
    nologin=/usr/sbin/nologin
    [ -x "$nologin" ] || nologin=/sbin/nologin
    useradd --system --uid "${uid:-842}" --gid ftstan --home-dir /var/lib/ftstan --no-create-home \
        --shell "$nologin" --comment "ftstan streaming server" ftstan
fi
