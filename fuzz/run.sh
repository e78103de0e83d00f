#!/usr/bin/env bash
# run.sh TARGET SECONDS: run one check of hostile input with libFuzzer. It begins with the seeds of the check, and keeps what
# it learns in fuzz/libfuzzer/corpus/. Leaks are not looked for: a check starts its servers once and for the whole process.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$1 seconds=$2
corpus=fuzz/libfuzzer/corpus/$target
mkdir -p "$corpus"
cargo run -q -p sluice-fuzz --bin seeds -- "$target" "$corpus" "$corpus.dict"
export ASAN_OPTIONS=detect_leaks=0
exec cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer "$target" "$corpus" -- \
  -max_total_time="$seconds" -max_len=16384 -timeout=100 -dict="$corpus.dict" -print_final_stats=1
