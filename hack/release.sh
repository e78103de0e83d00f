#!/usr/bin/env bash
# release.sh STEP: a step of a release, on any machine. The files are written to target/release-files.
#   check [TAG]        fail unless all files state the same version, TAG is `v` and this version, and CHANGELOG.md has a
#                      section about it
#   archive PLATFORM   build `sluice` for a platform of hack/release/platforms.txt: sluice-VERSION-PLATFORM.tar.gz, with completions
#                      and man pages, and its SBOM
#   images ARCH        build the images for amd64 or arm64 (images/), and copy their SBOMs
#   chart              package the chart with the helm of the tests
#   push-chart URL     push that package to a registry, such as oci://ghcr.io/sluice-dev/charts, and print its digest
#   finish             write what follows from the files that are there: notes.md, the manifest for krew, SHA256SUMS
# release.sh --dry-run: all of this that works here, for the state of the working tree. Without a section about the version, the
# notes are the section `Unreleased`. It says what is left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
readonly target files=$target/release-files
version=$(hack/version.py)
readonly version

log() { echo "release.sh: $*" >&2; }
die() { log "$*"; exit 1; }

check() { # check [TAG]
  hack/version.py --check || die "files state different versions"
  hack/release/notes.py "$version" >/dev/null
  [ $# = 0 ] || [ "$1" = "v$version" ] || die "the tag is $1, but the version is $version: hack/version.py changes it"
}

triple() { # triple PLATFORM: print the compiler's name of it
  awk -v platform="$1" '$1 == platform { print $2 }' hack/release/platforms.txt
}

archive() { # archive PLATFORM
  local triple folder shell name=sluice-$version-$1 packages=(sluice)
  triple=$(triple "$1")
  [ -n "$triple" ] || die "$1 is not in hack/release/platforms.txt"
  folder=$target/release-$1
  case $1 in
    # The binaries of Linux are built together, like those of the images, which are the same.
    linux-*) folder=$target/images/bin-${1#linux-} packages=(sluice-operator sluice-sidecar sluice-service sluice) ;;
  esac
  hack/binaries.sh --target "$triple" "$folder" "${packages[@]}"
  # Written by a binary of this machine, which may not run those of the platform.
  mkdir -p "$folder/pages"
  cargo run -q -p sluice -- man "$folder/pages"
  for shell in bash zsh fish; do
    cargo run -q -p sluice -- completion "$shell" >"$folder/pages/sluice.$shell"
  done
  python3 -B hack/release/archive.py "$files/$name.tar.gz" "$folder/sluice" LICENSE "$folder"/pages/*
  cp "$folder/sluice.cdx.json" "$files/$name.cdx.json"
}

images() { # images ARCH [OPTION...]
  local image
  hack/images.sh --arch "$1" "${@:2}" "$version"
  for image in operator sidecar service; do
    cp "images/sluice-$image-$1.cdx.json" "$files/sluice-$image-$version-linux-$1.cdx.json"
  done
}

chart() {
  local helm
  helm=$(tests/node/assets.sh helm)/helm
  "$helm" lint --quiet charts/sluice >&2
  "$helm" package --destination "$files" charts/sluice >&2
}

push_chart() { # push_chart URL [OPTION of helm...]
  local helm output digest
  helm=$(tests/node/assets.sh helm)/helm
  output=$("$helm" push "$files/sluice-$version.tgz" "$@" 2>&1) || die "$output"
  digest=$(awk '$1 == "Digest:" { print $2 }' <<<"$output")
  [ -n "$digest" ] || die "helm printed no digest: $output"
  echo "$digest"
}

finish() ( # finish [OPTION of notes.py]
  hack/release/notes.py "$@" "$version" >"$files/notes.md"
  hack/release/krew.py "$version" "$files" >"$files/sluice-krew.yaml"
  # The notes become the text of the release, and are no file of it.
  cd "$files"
  find . -type f ! -name 'SHA256SUMS*' ! -name notes.md -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS
)

compiler_for() { # compiler_for TRIPLE: whether cargo can build and link for it here
  [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ] || return 1
  case $1 in
    "$(rustc -vV | sed -n 's/^host: //p')") ;;
    aarch64-unknown-linux-gnu) command -v "${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER:-aarch64-linux-gnu-gcc}" >/dev/null ;;
    *) [ "$(uname -s)" = Darwin ] && [[ $1 = *-apple-darwin ]] ;;
  esac
}

dry_run() {
  local platform triple
  rm -rf "$files"
  mkdir -p "$files"
  hack/release.sh check || log "this is not ready to be released"
  while read -r platform triple; do
    if ! compiler_for "$triple"; then
      log "left out: $platform, for which there is no compiler and linker here"
      continue
    fi
    archive "$platform"
    case $platform in
      linux-*)
        if command -v buildah >/dev/null || command -v docker >/dev/null; then
          images "${platform#linux-}" --no-build
        else
          log "left out: images, because there is neither buildah nor docker"
        fi
        ;;
    esac
  done < <(grep -v '^#' hack/release/platforms.txt)
  if command -v go >/dev/null; then chart; else log "left out: the chart, because there is no go to build helm with"; fi
  finish --unreleased
  log "left out: pushing, signing, attesting, and the digest of Redis"
  ls -l "$files" >&2
}

main() {
  local step=${1:-}
  case $step in
    check | archive | images | chart | finish) mkdir -p "$files"; "$@" ;;
    push-chart) push_chart "${@:2}" ;;
    --dry-run) dry_run ;;
    *) sed -n '2,/^set/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | head -n -1; [ "$step" = --help ] || exit 2 ;;
  esac
}

main "$@"
