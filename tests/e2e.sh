#!/usr/bin/env bash
# e2e.sh [--keep]: build the images, start a real node, install Sluice with Helm and run the end-to-end tests.
# With --keep, only install Sluice and leave the node running.
set -euo pipefail
cd "$(dirname "$0")/.."

tag=e2e
hack/images.sh "$tag"
assets=$(tests/node/assets.sh node)
keep=${1:-}

down() {
  code=$?
  if [ "$code" -ne 0 ] && [ -d .node ]; then
    export KUBECONFIG="${KUBECONFIG:-}"
    "$assets/kubectl" get pods -A -o wide 2>/dev/null | tail -40 || true
    "$assets/kubectl" -n sluice-system logs -l app.kubernetes.io/component=operator --tail=40 --prefix 2>/dev/null || true
  fi
  [ "$keep" = --keep ] && [ "$code" -eq 0 ] || tests/node/node.sh down
  exit "$code"
}
trap down EXIT

tests/node/node.sh up 1
eval "$(tests/node/node.sh env)"
tests/node/node.sh load images/sluice-operator.tar images/sluice-sidecar.tar

# The command that the tests call.
cargo build --workspace --bins
export SLUICE_E2E_TAG=$tag
if [ "$keep" = --keep ]; then
  cargo test -q -p sluice-tests --features e2e --test e2e_install -- --nocapture
  printf '\nThe node runs with Sluice installed. In your shell:\n  %s\nTry:\n  kubectl get pods -A\n  kubectl apply -f examples/\nTo stop it: make node-down\n' 'eval "$(tests/node/node.sh env)"'
else
  cargo test -p sluice-tests --features e2e --test e2e_install
  cargo test -p sluice-tests --features e2e --test e2e_limits
  cargo test -p sluice-tests --features e2e --test e2e_bypasses
  cargo test -p sluice-tests --features e2e --test e2e_leader
  cargo test -p sluice-tests --features e2e --test e2e_stores
  cargo test -p sluice-tests --features e2e --test e2e_posture
  cargo test -p sluice-tests --features e2e --test e2e_uninstall
fi
