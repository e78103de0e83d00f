#!/usr/bin/env bash
# Checks the workflows with actionlint, which is built with Go once, in ${SLUICE_CACHE:-~/.cache/sluice}.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=hack/tools/actionlint
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/actionlint-$(cat $tool/go.* | sha256sum | cut -c 1-16)
if [ ! -x "$root/actionlint" ]; then
  command -v go >/dev/null || { echo "actionlint.sh: go is not installed (https://go.dev/dl/)" >&2; exit 1; }
  echo "building actionlint (once)" >&2
  mkdir -p "$root"
  (cd $tool && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    go build -mod=readonly -trimpath -buildvcs=false -o "$root/actionlint.new" github.com/rhysd/actionlint/cmd/actionlint)
  mv "$root/actionlint.new" "$root/actionlint"
fi
# Without programs that a machine may have or not: the result is the same everywhere.
"$root/actionlint" -shellcheck= -pyflakes= .github/workflows/*.yml
