#!/usr/bin/env bash
# check.sh: checks charts/sluice with helm lint, the schemas of Kubernetes, kube-score and promtool (check.py), and
# hack/argocd/health.lua with a Lua interpreter. Its tools are installed once, in ${SLUICE_CACHE:-~/.cache/sluice}.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
readonly cache

# tool NAME FILE...: print the directory of a tool, which tool_NAME installs if one of these files has changed.
tool() {
  local name=$1 version directory work
  version=$(cat "${@:2}" | sha256sum | cut -c 1-16)
  directory=$cache/chart-$name-$version
  if [ ! -d "$directory" ]; then
    echo "installing $name (once)" >&2
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/chart-$name.XXXXXX")
    "tool_$name" "$work" >&2
    # Another process may have been faster.
    mv -T "$work" "$directory" 2>/dev/null || rm -rf "$work"
  fi
  echo "$directory"
}
tool_schemas() { python3 -m pip install --quiet --require-hashes --target "$1" --requirement hack/chart/requirements.txt; }
tool_score() { (cd hack/chart/score && nice go build -mod=readonly -o "$1/" github.com/zegl/kube-score/cmd/kube-score); }
tool_types() { (cd hack/chart/types && nice go build -mod=readonly -o "$1/" .); }

tests/node/apt.sh test
helm=$(tests/node/assets.sh helm)
schemas=$(tool schemas hack/chart/requirements.txt <(python3 --version))
score=$(tool score hack/chart/score/go.mod hack/chart/score/go.sum)
types=$(tool types hack/chart/types/*)
export PATH="$helm:$score:$types:$PATH" PYTHONPATH="$schemas"
python3 -B hack/chart/check.py
lua5.4 hack/argocd/health_test.lua
