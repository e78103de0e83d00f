#!/usr/bin/env bash
# Checks licences, bans and sources of all dependencies, those of bench/ included, with cargo-deny, which is installed
# if it is missing.
# Advisories need a database from the network: run `cargo deny check advisories` where there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/cargo-deny-$version
if [ ! -x "$root/bin/cargo-deny" ]; then
  echo "installing cargo-deny $version (once)" >&2
  cargo install --quiet --locked --root "$root" cargo-deny --version "$version"
fi
for manifest in Cargo.toml bench/Cargo.toml; do
  "$root/bin/cargo-deny" --manifest-path "$manifest" --config deny.toml --all-features \
    check --hide-inclusion-graph bans licenses sources
done
