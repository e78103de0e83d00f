#!/usr/bin/env bash
# skew.sh: build the sidecar of an older commit, and run it with today's operator.
#   SLUICE_SKEW_COMMIT   the commit. Its messages have today's version (config/src/message.rs: others are refused), and it
#                        does not know the field that tests/tests/skew.rs adds
set -euo pipefail
cd "$(dirname "$0")/.."

readonly commit=${SLUICE_SKEW_COMMIT:?name an older commit whose messages have the version of today: no release has it yet} source=target/skew/source programs=target/skew/programs
git rev-parse --quiet --verify "$commit^{commit}" >/dev/null ||
  { echo "skew.sh: this clone has no commit $commit: run git fetch --unshallow" >&2; exit 1; }
if [ "$(cat "$programs/commit" 2>/dev/null || true)" != "$commit" ]; then
  rm -rf "$source" "$programs"
  mkdir -p "$source" "$programs"
  # In a folder of its own for what is compiled: cargo takes crates with the same names and versions for those of today.
  git archive "$commit" | tar -x -m -C "$source"
  (cd "$source" && CARGO_TARGET_DIR=../build cargo build --locked -p sluice-sidecar --bins)
  cp target/skew/build/debug/sluice-sidecar "$programs/"
  rm -rf "$source" target/skew/build
  echo "$commit" >"$programs/commit"
fi
KUBEBUILDER_ASSETS="${KUBEBUILDER_ASSETS:-$(tests/node/assets.sh apiserver)}"
export KUBEBUILDER_ASSETS SLUICE_OLDER=$PWD/$programs
cargo build -p sluice-operator --bins
cargo test -p sluice-tests --test integration -- skew:: --include-ignored
