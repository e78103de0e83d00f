#!/usr/bin/env bash
# Validates the description of the service's HTTP door against the specification of OpenAPI.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$(hack/tools/python.sh openapi)
cargo run --quiet -p sluice-service --example openapi | PYTHONPATH=$root python3 -B -m openapi_spec_validator --schema 3.1 -
