#!/usr/bin/env bash
# run.sh [PART...]: measure Sluice against its peers on this machine, and print one table.
#   PART   memory, redis, proxy, resident; without any: all
# The table is also in target/bench/report.md, what each part found and said beside it. Ends with 1 when something
# could not be measured, or did not limit as it should.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly target out=$target/bench
# How long a part may take: four to five times what it takes.
readonly limit=180

log() { echo "run.sh: $*" >&2; }

build() {
  cargo build --release -p sluice -p sluice-sidecar -p sluice-operator -p sluice-bench
  # Helpers shared with the tests look for the other binaries one folder above their own, as tests are laid out.
  ln -f "$target/release/sluice-bench" "$target/release/deps/sluice-bench"
}

# The parts whose programs are missing say so in the table: nothing here ends the others.
prepare() {
  tests/node/apt.sh test || log "redis-server or etcd is missing"
  bench/nginx.sh || log "nginx is missing"
  if [ -z "${KUBEBUILDER_ASSETS:-}" ]; then
    KUBEBUILDER_ASSETS=$(tests/node/assets.sh apiserver) || log "there is no API server"
    export KUBEBUILDER_ASSETS
  fi
}

measure() { # measure PART
  log "measuring: $1"
  rm -f "$out/$1.json"
  timeout --foreground "$limit" "$target/release/deps/sluice-bench" part "$1" "$out/$1.json" 2>"$out/$1.log" ||
    log "$1 failed: $out/$1.log"
}

version() { # version NAME: of a dependency, as locked
  awk -v name="\"$1\"" '$1 == "name" { found = ($3 == name) } found && $1 == "version" { gsub(/"/, "", $3); print $3; exit }' Cargo.lock
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
# Measurements

Medians of interleaved rounds, in parentheses the lowest and the highest. Trust ratios, not absolutes.

- $(date -u '+%Y-%m-%d %H:%M') UTC, load before: $load
- $(nproc) cores, $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), Linux $(uname -r)
- Sluice $(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$dirty; $(said rustc --version)
- governor $(version governor); redis crate $(version redis); $(said redis-server --version); $(said nginx -v)

END
}

main() {
  local parts=("$@") files=() status=0 part
  [ $# -gt 0 ] || parts=(memory redis proxy resident)
  mkdir -p "$out"
  build
  prepare
  # What processes leave behind when they are ended goes with this folder.
  TMPDIR=$(mktemp -d)
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
  load=$(cut -d ' ' -f 1-3 /proc/loadavg)
  for part in "${parts[@]}"; do
    measure "$part"
    files+=("$out/$part.json")
  done
  { machine; "$target/release/sluice-bench" report "${files[@]}"; } >"$out/report.md" || status=$?
  cat "$out/report.md"
  exit "$status"
}

main "$@"
