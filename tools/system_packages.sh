#!/usr/bin/env bash
# Installs the system packages that building and testing need, if they are missing (Debian 12, as root).
set -euo pipefail
want=(python3.11 python3.11-venv python3.11-dev gcc clang make nodejs npm openjdk-17-jre-headless
      chromium curl e2fsprogs iproute2 libatomic1 mount nftables openssl prometheus util-linux
      binutils git groff-base libmariadb-dev libseccomp2 lintian logrotate
      mariadb-client mariadb-server mmdebstrap pkg-config postgresql-15 rpm rpmlint systemd)
have() {
    case "$1" in
        nodejs) command -v node ;;
        npm) command -v npm ;;
        openjdk-17-jre-headless) command -v java ;;
        *) dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep 'ok installed' ;;
    esac >/dev/null
}
missing=()
for p in "${want[@]}"; do have "$p" || missing+=("$p"); done
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing: ${missing[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
