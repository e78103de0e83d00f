#!/usr/bin/env bash
# h2spec.sh: print the path of h2spec, a conformance test of HTTP/2 servers. It is built with Go once, in
# ${SLUICE_CACHE:-~/.cache/sluice}, or nothing is printed where there is no Go. tools/h2spec/ pins it and its dependencies,
# which it does not do itself.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/lib/go_tool.sh" h2spec github.com/summerwind/h2spec/cmd/h2spec
