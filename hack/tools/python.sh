#!/usr/bin/env bash
# python.sh TOOL: install hack/tools/TOOL/requirements.txt once, in ${SLUICE_CACHE:-~/.cache/sluice}, and print the folder for
# PYTHONPATH.
set -euo pipefail

requirements=$(dirname "${BASH_SOURCE[0]}")/$1/requirements.txt
python=$(python3 -c 'import platform; print(platform.python_version())')
version=$(sha256sum <"$requirements" | cut -c 1-16)-$python
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/$1-$version
if [ ! -d "$root" ]; then
  echo "installing $1 (once)" >&2
  mkdir -p "$(dirname "$root")"
  work=$(mktemp -d "$root.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip install --quiet --root-user-action ignore --require-hashes --no-deps --only-binary :all: --target "$work/new" \
    --requirement "$requirements" >&2
  # Another process may have been faster.
  mv -T "$work/new" "$root" 2>/dev/null || [ -d "$root" ]
fi
echo "$root"
