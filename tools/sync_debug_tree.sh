#!/usr/bin/env bash
# Brings everything but the extensions up to date in the debug tree ($1), so that the suite runs there as it is here.
set -euo pipefail
tree=$1
for d in ansible tests tools benchmarks demo lab docs packaging proto systemd; do
    rm -rf "${tree:?}/$d"
    # With their times: what was compiled here is good there, where compiling takes four times as long.
    cp -r --preserve=timestamps "$d" "$tree/"
done
(cd ftstan && find . -name '*.py' -o -name '*.pyi' -o -name '*.yaml' -o -name 'py.typed') | while read -r f; do
    mkdir -p "$tree/ftstan/$(dirname "$f")"
    cp -p "ftstan/$f" "$tree/ftstan/$f"
done
cp Makefile README.md package.json package-lock.json CHANGELOG.md "$tree/"
ln -sfn "$PWD/node_modules" "$tree/node_modules"
