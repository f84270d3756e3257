#!/bin/sh
# Makes the virtual environment at its final path. Runs in a mount namespace of its own (tools/packages.py):
#   environment.sh STAGE PATH PYTHON TOOL_PYTHON CYCLONEDX SBOM WHEEL...
# STAGE stands in for the parent of PATH, so nothing of this machine's directory of that name is touched.
set -eu
stage=$1 path=$2 python=$3 tool=$4 cyclonedx=$5 sbom=$6
shift 6
mount --bind "$stage" "$(dirname "$path")"
# Where it would take its own path from the shell's: an environment is not relocatable.
cd /
"$python" -m venv --without-pip "$path"
"$tool" -m pip --python "$path/bin/python" install -q --no-index --no-deps --no-compile --disable-pip-version-check \
    --no-warn-script-location --root-user-action=ignore "$@"
# Where a wheel came from on the building machine, and what only compilers and shells for people need.
find "$path" -name direct_url.json -delete -o -name REQUESTED -delete
find "$path/lib" -type d \( -name tests -o -name testing \) -path '*/site-packages/*/*' -prune -exec rm -rf {} +
find "$path/lib" \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' -o -name '*.c' \) -delete
rm -rf "$path/include" "$path"/bin/activate* "$path"/bin/Activate.ps1
# The commands that the package links; the rest are other packages' helpers.
find "$path/bin" -type f ! -name ftstan ! -name ftstanctl ! -name ftstan-pipeline ! -name ftstan-archive-slice ! -name ftstan-bridge ! -name nats-streaming-server ! -name nats-server -delete
# By content, not by time: nobody may write there later, and every file has the time of the commit.
"$path/bin/python" -m compileall -q -j 1 --invalidation-mode unchecked-hash "$path/lib"
find "$path" -type d -exec chmod 0755 {} +
find "$path" -type f -exec chmod 0644 {} +
find "$path/bin" -type f -exec chmod 0755 {} +
"$cyclonedx" environment "$path/bin/python" --output-reproducible --of JSON -o "$sbom"
