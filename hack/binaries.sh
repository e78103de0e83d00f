#!/usr/bin/env bash
# binaries.sh [--target TRIPLE] FOLDER PACKAGE...: build the release binaries of these packages, and write each to FOLDER with
# its SBOM, as BINARY and BINARY.cdx.json. A binary for Linux is static.
#   TRIPLE             the platform, in the compiler's words. Default: this machine's. Another architecture of Linux needs
#                      `rustup target add TRIPLE` and a C compiler (Debian: gcc-aarch64-linux-gnu)
#   CARGO_TARGET_DIR   cargo's target directory (target)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { echo "binaries.sh: $*" >&2; exit 1; }

# Fails with the names of the libraries if a binary needs any: an image FROM scratch has none, and no loader.
require_static() { # require_static FILE
  if LC_ALL=C readelf --program-headers --wide "$1" | grep -q INTERP; then
    die "$1 is not static: $(LC_ALL=C readelf --dynamic --wide "$1" | grep NEEDED)"
  fi
}

main() {
  local host triple folder package target=${CARGO_TARGET_DIR:-target} selected=()
  host=$(rustc -vV | sed -n 's/^host: //p')
  triple=$host
  if [ "${1:-}" = --target ]; then
    triple=$2
    shift 2
  fi
  [ $# -ge 2 ] || { sed -n '2,/^set/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | head -n -1 >&2; exit 2; }
  folder=$1
  shift
  for package in "$@"; do selected+=(-p "$package"); done

  case $triple in
    *-linux-*)
      # With an explicit target, cargo does not apply the flags to build scripts and procedural macros, which cannot be
      # static.
      export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }-C target-feature=+crt-static"
      ;;
  esac
  if [ "$triple" = aarch64-unknown-linux-gnu ]; then
    # Kernels for arm64 have pages of 4, 16 or 64 KiB. jemalloc works with pages up to the size for which it was built.
    export JEMALLOC_SYS_WITH_LG_PAGE=16
    if [ "$host" != "$triple" ]; then
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER:-aarch64-linux-gnu-gcc}
    fi
  fi

  mkdir -p "$folder" "$target"
  # Among other things, cargo prints which crates it has compiled for which platform.
  CARGO_TARGET_DIR=$target cargo build --release --locked --target "$triple" --message-format json-render-diagnostics \
    "${selected[@]}" >"$target/artifacts-$triple.json"
  for package in "$@"; do
    install -m 755 "$target/$triple/release/$package" "$folder/$package"
    case $triple in *-linux-*) require_static "$folder/$package" ;; esac
  done
  python3 -B hack/release/sbom.py --target "$triple" --output "$folder" --artifacts "$target/artifacts-$triple.json" "$@"
}

main "$@"
