#!/usr/bin/env bash
# Validates the description of the service's HTTP door against the specification of OpenAPI.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$(hack/tools/python.sh openapi)
# With the features that tests have, so that these need not compile it again.
cargo build --quiet --workspace --example openapi
"${CARGO_TARGET_DIR:-target}/debug/examples/openapi" | PYTHONPATH=$root python3 -B -m openapi_spec_validator --schema 3.1 -
