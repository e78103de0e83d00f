#!/usr/bin/env bash
# images.sh [--arch ARCH] [--no-build | --no-images] [TAG]: build the container images, and print the reference and file
# of each.
#   images/sluice-operator.tar, images/sluice-sidecar.tar, ...   docker archives, for `docker load` or `ctr images import`
#   images/sluice-operator.cdx.json, ...                         their SBOMs, which are also in the images
# cargo builds static binaries. buildah builds the images, or docker if buildah is not installed. Only cargo uses the
# network.
#   TAG                   tag of the images. Default: the version in Cargo.toml and the commit, such as 0.1.0-1a2b3c4,
#                         with -dirty appended if the working tree has changes
#   --arch ARCH           amd64 or arm64, which is appended to the names of the files: images/sluice-operator-arm64.tar.
#                         Default: this machine's, with nothing appended. See hack/binaries.sh for what another one needs
#   --no-build            use the binaries in target/images/bin
#   --no-images           build only these binaries
#   SLUICE_IMAGES         the images (operator sidecar service)
#   SLUICE_IMAGE_PREFIX   prefix of the references (ghcr.io/sluice-dev/)
#   CARGO_TARGET_DIR      cargo's target directory (target)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly prefix=${SLUICE_IMAGE_PREFIX-ghcr.io/sluice-dev/}
readonly target=${CARGO_TARGET_DIR:-target}
work=$(realpath -m "$target/images")
readonly work
read -ra images <<<"${SLUICE_IMAGES:-operator sidecar service}"
readonly images

die() { echo "images.sh: $*" >&2; exit 1; }

machine_arch() {
  case $(uname -sm) in
    'Linux x86_64') echo amd64 ;;
    'Linux aarch64') echo arm64 ;;
    *) die "$(uname -sm) cannot build for Linux containers: run this on Linux" ;;
  esac
}

triple() { # triple ARCH: print the compiler's name of it
  local triple
  triple=$(awk -v platform="linux-$1" '$1 == platform { print $2 }' hack/release/platforms.txt)
  [ -n "$triple" ] || die "there are no images for $1"
  echo "$triple"
}

revision() { # print the commit; nothing outside a checkout
  git rev-parse --short HEAD 2>/dev/null || true
}

default_tag() {
  local tag revision
  tag=$(hack/version.py)
  revision=$(revision)
  [ -n "$revision" ] && tag+=-$revision
  if [ -n "$revision" ] && ! git diff --quiet HEAD --; then tag+=-dirty; fi
  echo "$tag"
}

# buildah keeps its storage below $work. The vfs driver is fast enough for a few MB.
with_buildah() {
  TMPDIR=$work/tmp buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"
}

make_image() { # make_image NAME REFERENCE FILE
  local options=(
    --file Dockerfile --target "$1" --tag "$2" --platform "linux/$arch"
    --build-arg BIN_DIR=bin --build-arg "VERSION=$tag" --build-arg "REVISION=$(revision)"
  )
  if [ "$builder" = buildah ]; then
    # With the commit's time, equal binaries produce equal images.
    with_buildah bud --quiet --isolation chroot \
      --timestamp "$(git log -1 --format=%ct 2>/dev/null || echo 0)" "${options[@]}" "$work/context" >/dev/null
    with_buildah push --quiet "$2" "docker-archive:$3:$2"
  else
    docker build --quiet "${options[@]}" "$work/context" >/dev/null
    docker save --output "$3" "$2"
  fi
}

main() {
  local build=1 make=1 tag='' suffix='' image file reference
  arch=$(machine_arch)
  while [ $# -gt 0 ]; do
    case $1 in
      --arch) arch=${2:-} suffix=-$arch; shift ;;
      --no-build) build=0 ;;
      --no-images) make=0 ;;
      -h | --help) sed -n '2,/^set/ s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; return ;;
      -*) die "unknown option $1" ;;
      *) [ -z "$tag" ] || die "one TAG, not $tag and $1"; tag=$1 ;;
    esac
    shift
  done
  tag=${tag:-$(default_tag)}
  [[ $tag =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] || die "$tag is not a valid image tag"
  # Nodes cache images by name, so they would keep running an old image under a name that never changes.
  [ "$tag" != latest ] || die "latest is not allowed: give the images a tag of their own"

  bin=$work/bin$suffix
  if [ $build = 1 ]; then
    hack/binaries.sh --target "$(triple "$arch")" "$bin" "${images[@]/#/sluice-}" sluice
  fi
  mkdir -p "$bin/links/bin"
  ln -sfn /sluice-service "$bin/links/bin/ratelimit"
  if [ $make = 0 ]; then return; fi
  builder=$(command -v buildah || command -v docker) || die "neither buildah nor docker is installed"
  builder=${builder##*/}

  # First remove what a killed run has left. As root, buildah also writes to /var/lib/containers, which no option
  # changes.
  temporary=("$work"/{context,storage,run,tmp})
  rm -rf "${temporary[@]}"
  [ -e /var/lib/containers ] || temporary+=(/var/lib/containers)
  trap 'rm -rf "${temporary[@]}"' EXIT
  mkdir -p images "$work/context/bin" "$work/tmp"
  for image in "${images[@]}"; do
    file=$bin/sluice-$image
    [ -x "$file" ] || die "$file does not exist: run this without --no-build"
    ln "$file" "$file.cdx.json" "$work/context/bin/"
  done
  cp -a "$bin/links" "$work/context/bin/"
  for image in "${images[@]}"; do
    reference=${prefix}sluice-$image:$tag
    make_image "$image" "$reference" "$work/tmp/$image.tar"
    file=images/sluice-$image$suffix
    mv -f "$work/tmp/$image.tar" "$file.tar"
    cp "$bin/sluice-$image.cdx.json" "$file.cdx.json"
    printf '%s\t%s\n' "$reference" "$file.tar"
  done
}

main "$@"
