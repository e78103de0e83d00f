#!/usr/bin/env bash
# e2e.sh [--build|--keep]: build the images, start real nodes, install Sluice with Helm and run the end-to-end tests.
# With --build, only build. With --keep, only install Sluice and leave the nodes running.
#   SLUICE_E2E_BUILT      if set, nothing is built, because e2e.sh --build was run before
#   SLUICE_E2E_PREVIOUS   the commit from which the test of upgrades upgrades (HEAD~1)
#   SLUICE_E2E_PROFILE    quick: images as in a release, of binaries that are compiled quickly (default); release: compiled as a
#                         release does; dev: images of what `make build` has compiled, so that nothing is compiled for them alone
#   SLUICE_KUBERNETES     the version of Kubernetes, and SLUICE_HELM that of Helm: see tests/node/assets.sh
set -euo pipefail
cd "$(dirname "$0")/.."

readonly tag=e2e previous_tag=e2e-previous previous=target/e2e/previous program=target/e2e/program
only_build='' keep=''
case "$*" in
  '') ;;
  --build) only_build=yes ;;
  --keep) keep=yes ;;
  *) echo "usage: e2e.sh [--build|--keep]" >&2; exit 2 ;;
esac

readonly profile=${SLUICE_E2E_PROFILE:-quick}
# As `make test` builds them, so that nothing is compiled twice.
readonly test=readings
readonly binaries=(--workspace --bins --test "$test") tests=(--workspace --features sluice-tests/e2e --test e2e)

# The tests do not measure, so the images are compiled quickly rather than for speed.
if [ "$profile" = quick ]; then
  export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
fi

# Builds the images of the previous commit, from binaries of the dev profile: what `make test` has compiled of other projects
# is not compiled again.
previous_images() {
  local commit=${SLUICE_E2E_PREVIOUS:-HEAD~1} image
  git rev-parse --quiet --verify "$commit^{commit}" >/dev/null ||
    { echo "e2e.sh: this clone has no commit $commit to upgrade from: run git fetch --deepen=1" >&2; exit 1; }
  rm -rf "$previous"
  mkdir -p "$previous"
  # With the present time as the time of the files, so that cargo does not take them for those of another commit.
  git archive "$commit" | tar -x -m -C "$previous"
  # With another version: cargo would take crates with the same names, versions and places in their workspace for the same.
  sed -i '/^\[workspace.package\]/,/^version/ s/^version = .*/version = "0.0.1"/' "$previous/Cargo.toml"
  sed -i '/^name = "sluice/ { n; s/.*/version = "0.0.1"/ }' "$previous/Cargo.lock"
  # The selection of packages and of a test decides which features of other projects are compiled.
  (cd "$previous" && CARGO_TARGET_DIR=../.. cargo build --locked --workspace --bin sluice-operator --bin sluice-sidecar --test "$test")
  dev_images "$previous" "$previous_tag" sluice-operator sluice-sidecar
}

# Makes images of the binaries that are in target/debug now.
dev_images() { # dev_images FOLDER TAG IMAGE...
  local folder=$1 images_tag=$2 image
  shift 2
  mkdir -p "$folder"
  for image in "$@"; do
    strip --strip-debug -o "$folder/$image" "target/debug/$image"
    tests/node/image.py "ghcr.io/sluice-dev/$image:$images_tag" "$folder/$image.tar" \
      --bin "$folder/$image:/$image" --entrypoint "/$image" --user 65532:65532
  done
}

down() {
  code=$?
  if [ "$code" -ne 0 ] && [ -d .node ]; then
    export KUBECONFIG="${KUBECONFIG:-}"
    "$assets/kubectl" get pods -A -o wide 2>/dev/null | tail -40 || true
    "$assets/kubectl" -n sluice-system logs -l app.kubernetes.io/component=operator --tail=40 --prefix 2>/dev/null || true
  fi
  [ -n "$keep" ] && [ "$code" -eq 0 ] || tests/node/node.sh down
  exit "$code"
}

# Builds the images, the command that the tests call, and the tests.
build() {
  [ -n "$keep" ] || previous_images
  cargo build "${binaries[@]}"
  mkdir -p target/e2e
  cargo test "${tests[@]}" --no-run --message-format=json-render-diagnostics |
    sed -n 's,.*"executable":"\([^"]*/e2e-[^"]*\)".*,\1,p' >"$program"
  if [ "$profile" = dev ]; then
    dev_images images "$tag" sluice-operator sluice-sidecar sluice-service
  else
    hack/images.sh "$tag"
  fi
}

# Runs the tests of these modules, or with further options of the test harness. Prints how long they took.
e2e() {
  local start=$SECONDS
  (cd tests && "$(cat "../$program")" "$@")
  echo "e2e.sh: $* took $((SECONDS - start)) s"
}

# First, because it refuses an unknown version of Kubernetes.
assets=$(tests/node/assets.sh node)
[ -n "${SLUICE_E2E_BUILT:-}" ] || build
[ -z "$only_build" ] || exit 0
export SLUICE_E2E_TAG=$tag
# The gateway in front of the service.
SLUICE_ENVOY="${SLUICE_ENVOY:-$(bench/tools/install.sh envoy)}"
export SLUICE_ENVOY

trap down EXIT
if [ -n "$keep" ]; then
  tests/node/node.sh up 1
else
  tests/node/node.sh up 3
fi
eval "$(tests/node/node.sh env)"
tests/node/node.sh load images/sluice-operator.tar images/sluice-sidecar.tar images/sluice-service.tar

if [ -n "$keep" ]; then
  e2e installation:: --nocapture
  printf '\nThe node runs with Sluice installed. In your shell:\n  %s\nTry:\n  kubectl get pods -A\n  kubectl apply -f examples/\nTo stop it: make node-down\n' 'eval "$(tests/node/node.sh env)"'
else
  tests/node/node.sh load "$previous/sluice-operator.tar" "$previous/sluice-sidecar.tar"
  export SLUICE_E2E_PREVIOUS_CHART=$previous/charts/sluice SLUICE_E2E_PREVIOUS_TAG=$previous_tag
  # The version of its messages.
  SLUICE_E2E_PREVIOUS_MESSAGES=$(grep -rhoP 'pub const VERSION: u32 = \K\d+' "$previous/config/src")
  export SLUICE_E2E_PREVIOUS_MESSAGES
  e2e installation::
  # These leave the installation alone, and mostly wait.
  e2e --test-threads=6 awkward:: bypasses:: limits:: workloads::
  # One after the other, in the order of their names.
  e2e --test-threads=1 certificates:: leader:: posture:: service:: stores::
  e2e --test-threads=1 uninstall:: upgrade::
  e2e nodes::
fi
