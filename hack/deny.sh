#!/usr/bin/env bash
# Checks licences, bans and sources of all dependencies with cargo-deny, and installs cargo-deny if necessary.
# Advisories are not checked here, because their database comes from the network: run `cargo deny check advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/cargo-deny-$version
if [ ! -x "$root/bin/cargo-deny" ]; then
  echo "installing cargo-deny $version (once)" >&2
  cargo install --quiet --locked --root "$root" cargo-deny --version "$version"
fi
"$root/bin/cargo-deny" --all-features check --hide-inclusion-graph bans licenses sources
