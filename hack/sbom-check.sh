#!/usr/bin/env bash
# Compares the SBOMs of all binaries and platforms with the crates that cargo would compile, and validates them against the
# schema of CycloneDX. It builds nothing. The validator is installed once, in ${SLUICE_CACHE:-~/.cache/sluice}.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=hack/tools/sbom/requirements.txt
python=$(python3 -c 'import platform; print(platform.python_version())')
version=$(sha256sum <"$requirements" | cut -c 1-16)-$python
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/cyclonedx-$version
if [ ! -d "$root" ]; then
  echo "installing the validator of SBOMs (once)" >&2
  mkdir -p "$(dirname "$root")"
  work=$(mktemp -d "$root.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip install --quiet --require-hashes --no-deps --only-binary :all: --target "$work/new" --requirement "$requirements"
  # Another process may have been faster.
  mv -T "$work/new" "$root" 2>/dev/null || [ -d "$root" ]
fi
PYTHONPATH=$root python3 -B hack/release/sbom.py --check "$root/cyclonedx/schema/_res"
