#!/usr/bin/env bash
# otelcol.sh: print the path of an OpenTelemetry collector that receives OTLP and prints spans. It is built with Go once, in
# ${SLUICE_CACHE:-~/.cache/sluice}, or nothing is printed where there is no Go. tools/otelcol/ is its source.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/lib/go_tool.sh" otelcol .
