#!/usr/bin/env bash
# h2spec.sh: print the path of h2spec, a conformance test of HTTP/2 servers. It is built with Go once, in
# ${SLUICE_CACHE:-~/.cache/sluice}, or nothing is printed where there is no Go.
set -euo pipefail

version=v2.2.1+incompatible
readonly version
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/h2spec-${version%+*}
readonly root

if [ ! -x "$root/h2spec" ]; then
  if ! command -v go >/dev/null; then
    echo "h2spec.sh: there is no go to build h2spec with: its test is skipped" >&2
    exit
  fi
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # h2spec has no go.mod, so the versions of its dependencies are pinned here.
  cd "$work"
  cat >go.mod <<EOF
module h2spec.local
go 1.24
require github.com/summerwind/h2spec $version
EOF
  cat >tools.go <<EOF
package tools
import _ "github.com/summerwind/h2spec/cmd/h2spec"
EOF
  go get golang.org/x/net@v0.35.0 github.com/spf13/cobra@v1.9.1 github.com/fatih/color@v1.18.0 >&2
  GOFLAGS=-mod=mod go build -o "$work/h2spec" github.com/summerwind/h2spec/cmd/h2spec >&2
  mkdir -p "$root"
  mv "$work/h2spec" "$root/h2spec"
fi
echo "$root/h2spec"
