#!/usr/bin/env bash
# h2spec.sh: print the path of h2spec, a conformance test of HTTP/2 servers. It is built with Go once, in
# ${SLUICE_CACHE:-~/.cache/sluice}, or nothing is printed where there is no Go. tools/h2spec/ pins it and its dependencies,
# which it does not do itself.
set -euo pipefail

tool=$(cd "$(dirname "${BASH_SOURCE[0]}")/tools/h2spec" && pwd)
version=$(cat "$tool"/go.* | sha256sum | cut -c 1-16)
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/h2spec-$version
readonly tool version root

if [ ! -x "$root/h2spec" ]; then
  if ! command -v go >/dev/null; then
    echo "h2spec.sh: there is no go to build h2spec with: its test is skipped" >&2
    exit
  fi
  mkdir -p "$root"
  (cd "$tool" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    go build -mod=readonly -trimpath -buildvcs=false -o "$root/h2spec.new" github.com/summerwind/h2spec/cmd/h2spec >&2)
  mv "$root/h2spec.new" "$root/h2spec"
fi
echo "$root/h2spec"
