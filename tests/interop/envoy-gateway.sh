#!/usr/bin/env bash
# envoy-gateway.sh [--keep] [TEST...]: run the tests of tests/tests/envoy_gateway on a real node: Envoy Gateway, installed with its own
# chart, real Envoys, and sluice-service in place of ratelimit. Needs root. The first run builds Envoy Gateway and ratelimit, which takes
# many minutes.
#   --keep   leave the node running, which a further run with --keep uses again
#   TEST     the modules of the tests, in this order (replacement policies edits outages)
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly tag=interop work=target/envoy-gateway module=github.com/envoyproxy/gateway
keep=''
if [ "${1:-}" = --keep ]; then keep=1; shift; fi
[ $# -gt 0 ] || set -- replacement policies edits outages

# The tests do not measure, so the image is compiled quickly rather than for speed.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

image() { # image NAME PROGRAM DEST [OPTION...]: build an image with a program and what it loads
  tests/node/image.py "sluice.local/$1:test" "$work/$1.tar" --bin "$2:$3" "${@:4}"
}

# Copies the charts of Envoy Gateway, whose values are a template.
charts() {
  local source
  source=$(cd tests/node/tools/envoy-gateway && go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  rm -rf "$work/chart"
  cp -r --no-preserve=mode "$source/charts/gateway-helm" "$work/chart"
  # shellcheck disable=SC2016 # The names are those of the template.
  sed -e 's|${GatewayImage}|sluice.local/envoy-gateway:test|' -e 's|${GatewayImagePullPolicy}|IfNotPresent|' \
    "$work/chart/values.tmpl.yaml" >"$work/chart/values.yaml"
}

down() {
  code=$?
  if [ "$code" -ne 0 ] && [ -d .node ]; then
    kubectl get pods -A -o wide | tail -40 || true
    kubectl -n envoy-gateway-system logs deployment/envoy-gateway --tail=40 || true
    kubectl -n envoy-gateway-system logs deployment/envoy-ratelimit --tail=40 || true
  fi
  [ -n "$keep" ] || tests/node/node.sh down
  exit "$code"
}

mkdir -p "$work"
image envoy-gateway "$(tests/node/envoy-gateway.sh)" /usr/local/bin/envoy-gateway --entrypoint /usr/local/bin/envoy-gateway \
  --user 65532:65532 --dir /var/lib/eg --dir /tmp:1777
image envoy "$(bench/tools/install.sh envoy)" /usr/local/bin/envoy --entrypoint envoy --user 65532:65532 --dir /tmp:1777
image ratelimit "$(bench/tools/install.sh ratelimit)" /bin/ratelimit --dir /tmp:1777
charts
SLUICE_IMAGES=service hack/images.sh "$tag"
cargo test -p sluice-tests --features e2e --test envoy_gateway --no-run

trap down EXIT
if [ -z "$keep" ] || ! tests/node/node.sh status >/dev/null 2>&1; then tests/node/node.sh up 1 >/dev/null; fi
eval "$(tests/node/node.sh env)"
tests/node/node.sh load images/sluice-service.tar "$work"/{envoy-gateway,envoy,ratelimit}.tar
export SLUICE_GATEWAY_CHART=$work/chart SLUICE_GATEWAY_IMAGE=ghcr.io/sluice-dev/sluice-service:$tag
for tests in "$@"; do
  # One after the other, but for those of policies, which leave the installation alone.
  threads=1
  [ "$tests" != policies ] || threads=8
  cargo test -p sluice-tests --features e2e --test envoy_gateway -- "$tests::" --test-threads=$threads --nocapture
done
