#!/usr/bin/env bash
# envoy-gateway.sh: print the path of Envoy Gateway. It is built with Go once, in ${SLUICE_CACHE:-~/.cache/sluice}, which takes
# several minutes. tools/envoy-gateway/ pins it.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/lib/go_tool.sh" envoy-gateway github.com/envoyproxy/gateway/cmd/envoy-gateway
