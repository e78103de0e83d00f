#!/usr/bin/env bash
# deny.sh [advisories]: check the dependencies with cargo-deny, which is installed if it is missing.
#   Without an argument: licences, bans and sources. This needs no network, and does not look at advisories. What has passed is
#               recorded in hack/deny.sum, and cargo-deny is neither built nor run for the same dependencies and rules again.
#   advisories: the same without the record, and known vulnerabilities, yanked versions and unmaintained crates. This fetches
#               RustSec's database from GitHub, and fails if it cannot.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly record=hack/deny.sum
# A digest of the dependencies and of the rules.
digest() {
  git ls-files -z Cargo.lock '*Cargo.toml' deny.toml hack/deny.sh | xargs -0 cat | sha256sum | cut -d ' ' -f 1
}

case "$*" in
  '') [ "$(digest)" != "$(cat $record)" ] || exit 0 ;;
  advisories) ;;
  *) echo "usage: deny.sh [advisories]" >&2; exit 2 ;;
esac
version=0.20.2
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/cargo-deny-$version
if [ ! -x "$root/bin/cargo-deny" ]; then
  echo "installing cargo-deny $version (once)" >&2
  CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --root "$root" cargo-deny --version "$version"
fi

deny() { # deny MANIFEST CHECK...
  "$root/bin/cargo-deny" --manifest-path "$1" --config deny.toml --all-features check --hide-inclusion-graph "${@:2}"
}

if [ "$*" = advisories ]; then
  deny Cargo.toml bans licenses sources advisories
  deny fuzz/libfuzzer/Cargo.toml advisories
else
  deny Cargo.toml bans licenses sources
  digest >$record
fi
