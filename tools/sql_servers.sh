#!/bin/sh
# Private PostgreSQL and MariaDB servers: sql_servers.sh start|stop|kill|sources DIR [postgres|mysql]
#
# They listen on 127.0.0.1 alone and keep everything in DIR, which has to be short: sockets are in it. Root starts them
# as the packages' users postgres and mysql (tools/system_packages.sh installs the packages). Login: user nss, without a
# password in PostgreSQL, with the password nss in MariaDB; it may create databases.
# The third word: start this one only.
# Environment: PG_PORT (55432), MY_PORT (53306), FAST=1: nothing is synced (for tests that cut no power).
set -eu
what=${1:?start, stop, kill or sources}
dir=$(mkdir -p "${2:?directory}" && cd "$2" && pwd)
PG_PORT=${PG_PORT:-55432} MY_PORT=${MY_PORT:-53306} FAST=${FAST:-0}
pg=$dir/pg my=$dir/my

fail() { echo "sql_servers.sh: $*" >&2; exit 1; }
as() { # USER COMMAND...: as that user if root asks, else as whoever asks
    user=$1; shift
    if [ "$(id -u)" = 0 ]; then runuser -u "$user" -- env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@"
    else LC_ALL=C.UTF-8 "$@"; fi
}
place() { mkdir -p "$2"; chmod 755 "$2"; if [ "$(id -u)" = 0 ]; then chown "$1" "$2"; fi; }
ping_my() { mariadb-admin --no-defaults -S "$my/s" -u root ping >/dev/null 2>&1; }

start_pg() {
    bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    [ -n "$bin" ] || fail "PostgreSQL is missing: install the package postgresql-15"
    [ "$FAST" = 1 ] && sync=off || sync=on
    if [ ! -f "$pg/data/PG_VERSION" ]; then
        place postgres "$pg"
        as postgres "$bin/initdb" -D "$pg/data" -A trust -U postgres -E UTF8 --locale=C.UTF-8 -N >"$dir/initdb.log" 2>&1 ||
            fail "$(tail -1 "$dir/initdb.log")"
    fi
    echo "$bin" >"$dir/pgbin"
    as postgres "$bin/pg_ctl" -D "$pg/data" -l "$pg/log" -w -t 60 -o "-c listen_addresses=127.0.0.1 -c port=$PG_PORT \
-c unix_socket_directories='$pg' -c fsync=$sync -c full_page_writes=$sync -c max_connections=200" start >/dev/null ||
        fail "$(tail -3 "$pg/log")"
    as postgres "$bin/psql" -qX -h "$pg" -p "$PG_PORT" -U postgres -c "CREATE ROLE nss LOGIN CREATEDB" 2>/dev/null || true
}
start_my() {
    command -v mariadbd >/dev/null || PATH=$PATH:/usr/sbin
    command -v mariadbd >/dev/null || fail "MariaDB is missing: install the package mariadb-server"
    if [ ! -d "$my/data/mysql" ]; then
        place mysql "$my"; place mysql "$my/tmp"
        # A server that starts removes the temporary tables of every other one with the same directory for them.
        as mysql mariadb-install-db --no-defaults --datadir="$my/data" --tmpdir="$my/tmp" --auth-root-authentication-method=normal \
            --skip-test-db --skip-name-resolve >"$dir/install-db.log" 2>&1 || fail "$(grep -m 1 ERROR "$dir/install-db.log" || tail -1 "$dir/install-db.log")"
    fi
    ping_my && return
    [ "$FAST" = 1 ] && fast="--innodb-flush-log-at-trx-commit=0 --skip-innodb-doublewrite" || fast=
    # shellcheck disable=SC2086  # two words, or none
    as mysql setsid mariadbd --no-defaults --datadir="$my/data" --tmpdir="$my/tmp" --socket="$my/s" --port="$MY_PORT" --pid-file="$my/pid" \
        --bind-address=127.0.0.1 --log-error="$my/log" --skip-name-resolve --character-set-server=utf8mb4 \
        --max-connections=200 --max-allowed-packet=64M $fast >/dev/null 2>&1 </dev/null &
    tries=0
    until ping_my; do
        tries=$((tries + 1)); [ $tries -le 600 ] || fail "$(tail -3 "$my/log")"; sleep 0.1
    done
    for host in localhost 127.0.0.1; do
        echo "CREATE USER IF NOT EXISTS nss@'$host' IDENTIFIED BY 'nss'; GRANT ALL ON *.* TO nss@'$host';"
    done | mariadb --no-defaults -S "$my/s" -u root
}
stop() { # pg_ctl's mode, signal for MariaDB
    [ ! -f "$pg/data/postmaster.pid" ] || as postgres "$(cat "$dir/pgbin")/pg_ctl" -D "$pg/data" -m "$1" -w stop >/dev/null || true
    [ -f "$my/pid" ] || return 0
    pid=$(cat "$my/pid"); kill "-$2" "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}

[ ${#dir} -le 80 ] || fail "$dir is too long for sockets"
case $what in
start)
    case ${3:-both} in
    postgres) start_pg ;;
    mysql) start_my ;;
    both) start_pg; start_my ;;
    *) fail "postgres or mysql, not $3" ;;
    esac ;;
stop) stop fast TERM ;;
kill) stop immediate KILL ;;
sources)
    echo "postgres host=$pg port=$PG_PORT user=nss dbname=nss sslmode=disable"
    echo "mysql nss:nss@unix($my/s)/nss" ;;
*) fail "start, stop, kill or sources, not $what" ;;
esac
