#!/usr/bin/env bash
# Compares the SBOMs of all binaries and platforms with the crates that cargo would compile, and validates them against the
# schema of CycloneDX. It builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$(hack/tools/python.sh sbom)
PYTHONPATH=$root python3 -B hack/release/sbom.py --check "$root/cyclonedx/schema/_res"
