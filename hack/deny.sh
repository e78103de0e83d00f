#!/usr/bin/env bash
# deny.sh [advisories]: check the dependencies of all workspaces with cargo-deny, which is installed if it is missing.
#   Without an argument: licences, bans and sources. This needs no network, and does not look at advisories.
#   advisories: known vulnerabilities, yanked versions and unmaintained crates. This fetches RustSec's database from GitHub,
#               and fails if it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."

case "$*" in
  '') checks=(bans licenses sources) manifests=(Cargo.toml bench/Cargo.toml) ;;
  advisories) checks=(advisories) manifests=(Cargo.toml bench/Cargo.toml fuzz/libfuzzer/Cargo.toml) ;;
  *) echo "usage: deny.sh [advisories]" >&2; exit 2 ;;
esac
version=0.20.2
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/cargo-deny-$version
if [ ! -x "$root/bin/cargo-deny" ]; then
  echo "installing cargo-deny $version (once)" >&2
  CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --root "$root" cargo-deny --version "$version"
fi
for manifest in "${manifests[@]}"; do
  "$root/bin/cargo-deny" --manifest-path "$manifest" --config deny.toml --all-features \
    check --hide-inclusion-graph "${checks[@]}"
done
