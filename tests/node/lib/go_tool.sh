#!/usr/bin/env bash
# go_tool.sh NAME PACKAGE: print the path of a program of tools/NAME/. It is built with Go once, in
# ${SLUICE_CACHE:-~/.cache/sluice}, or nothing is printed where there is no Go.
set -euo pipefail

readonly name=$1 package=$2
tool=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tools/$name" && pwd)
version=$(find "$tool" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-16)
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/$name-$version
readonly tool version root

if [ ! -x "$root/$name" ]; then
  if ! command -v go >/dev/null; then
    echo "$name.sh: there is no go to build $name with: its test is skipped" >&2
    exit
  fi
  mkdir -p "$root"
  (cd "$tool" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    go build -mod=readonly -trimpath -buildvcs=false -o "$root/$name.new" "$package" >&2)
  mv "$root/$name.new" "$root/$name"
fi
echo "$root/$name"
