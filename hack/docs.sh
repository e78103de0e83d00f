#!/usr/bin/env bash
# docs.sh: build the documentation as a site in target/site, and check its links. mdBook is built once, in
# ${SLUICE_CACHE:-~/.cache/sluice}.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly version=0.5.4
readonly tool=${SLUICE_CACHE:-$HOME/.cache/sluice}/mdbook-$version

if [ ! -x "$tool/bin/mdbook" ]; then
  CARGO_PROFILE_DEV_DEBUG=false cargo install --locked mdbook --version $version --no-default-features --features search --debug --root "$tool" >&2
fi
rm -rf target/site
"$tool/bin/mdbook" build
# What mdBook copies beside the pages.
rm -rf target/site/plots/*.tsv
hack/docs/check_links.py target/site
node hack/docs/site_test.js target/site
