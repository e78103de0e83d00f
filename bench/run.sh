#!/usr/bin/env bash
# run.sh [--write] [PART...]: measure Sluice against its peers on this machine, and print one page.
#   PART     functions, edge, memory, memory-size, redis, limitador, callers, processes, leases, redis-size, block,
#            outage, proxy, resident; without any: all
#   --write  also write docs/performance.md and docs/plots/
# The page is in target/bench/report.md, what each part found and said beside it. Ends with 1 when something could not be
# measured, or did not limit as it should; whether aims are met is in the page.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly target out=$target/bench
readonly all=(functions edge memory memory-size redis limitador callers processes leases redis-size block outage proxy resident)
# How long a part may take, in seconds: several times what it takes.
readonly limit=180

log() { echo "run.sh: $*" >&2; }

build() {
  cargo build --release -p sluice -p sluice-sidecar -p sluice-operator -p sluice-bench
  # Helpers shared with the tests look for the other binaries one folder above their own, as tests are laid out.
  ln -f "$target/release/sluice-bench" "$target/release/deps/sluice-bench"
}

# The parts whose programs are missing say so in the page: nothing here ends the others.
prepare() {
  SLUICE_BENCH_LIMITADOR=$(bench/limitador/build.sh "$target/limitador") || log "limitador cannot be built"
  export SLUICE_BENCH_LIMITADOR
  tests/node/apt.sh test || log "redis-server or etcd is missing"
  bench/nginx.sh || log "nginx is missing"
  if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
    KUBEBUILDER_ASSETS=$(tests/node/assets.sh apiserver) || log "there is no API server"
    export KUBEBUILDER_ASSETS
  fi
}

# Neighbours disturb less so, where it is allowed; nice alone does not reach beyond its session where the scheduler groups
# processes by sessions: sched(7).
readonly niceness=-10
prefer() { # prefer NICE: this session
  { echo "$1" >/proc/self/autogroup; } 2>/dev/null || true
}

measure() { # measure PART
  local seconds=$SECONDS
  rm -f "$out/$1.json" "$out/plots/$1.svg"
  timeout --foreground "$limit" nice -n "$niceness" "$target/release/deps/sluice-bench" part "$1" "$out/$1.json" >"$out/$1.log" 2>&1 ||
    log "$1 failed: $out/$1.log"
  log "measured: $1, $((SECONDS - seconds)) s"
}

version() { # version NAME [FOLDER]: of a dependency, as locked
  awk -v name="\"$1\"" '$1 == "name" { found = ($3 == name) } found && $1 == "version" { gsub(/"/, "", $3); print $3; exit }' "${2:-.}/Cargo.lock"
}

said() { # said COMMAND...: its first line, or that it cannot be run
  local line
  line=$(PATH="$PATH:/usr/sbin:/sbin" "$@" 2>&1 | head -n 1) || true
  echo "${line:-$1 does not answer}"
}

machine() {
  local dirty=
  git diff --quiet HEAD -- 2>/dev/null || dirty=", with changes"
  cat <<END
# Performance

Written by \`make bench\`, unedited. Medians of interleaved rounds, in parentheses the lowest and the highest; ratios are of
the same run and round. This was a small machine with neighbours: trust ratios, and measure on yours. Redis has one core, who
calls it another one. The peers' configuration is in [\`bench/peers/\`](../bench/peers/) and
[\`bench/limitador/\`](../bench/limitador/).

- $(date -u '+%Y-%m-%d %H:%M') UTC, took $((SECONDS - began)) s after the build; load before: $load, after: $(cut -d ' ' -f 1-3 /proc/loadavg)
- $(nproc) cores, $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)
- Sluice $(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$dirty; $(said rustc --version)
- governor $(version governor), limitador $(version limitador bench/limitador), redis crate $(version redis), criterion $(version criterion)
- $(said redis-server --version); $(said nginx -v)

END
}

main() {
  local parts=() status=0 write='' part
  if [ "${1:-}" = --write ]; then
    write=yes
    shift
  fi
  parts=("$@")
  [ $# -gt 0 ] || parts=("${all[@]}")
  mkdir -p "$out/plots"
  build
  prepare
  # What processes leave behind when they are ended goes with this folder.
  TMPDIR=$(mktemp -d)
  export TMPDIR
  before=$(awk '{ print $NF }' /proc/self/autogroup 2>/dev/null) || before=0
  trap 'prefer "$before"; rm -rf "$TMPDIR"' EXIT
  load=$(cut -d ' ' -f 1-3 /proc/loadavg)
  began=$SECONDS
  prefer "$niceness"
  for part in "${parts[@]}"; do
    measure "$part"
  done
  prefer "$before"
  { machine; "$target/release/sluice-bench" report "$out" "${parts[@]}"; } >"$out/report.md" || status=$?
  cat "$out/report.md"
  if [ -n "$write" ]; then
    cp "$out/report.md" docs/performance.md
    mkdir -p docs/plots
    cp "$out"/plots/*.svg docs/plots/
  fi
  exit "$status"
}

main "$@"
