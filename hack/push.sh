#!/usr/bin/env bash
# push.sh TAG: push the images in images/sluice-*-ARCH.tar, which hack/images.sh --arch ARCH TAG has written, as one reference
# for all architectures. Prints the digests: `operator=sha256:...` of the reference, `operator-amd64=sha256:...` of an image.
# Needs buildah, skopeo, and a login at the registry (REGISTRY_AUTH_FILE, or that of docker or buildah).
#   SLUICE_IMAGE_PREFIX   prefix of the references (ghcr.io/sluice-dev/)
#   SLUICE_PUSH_OPTIONS   options of buildah and skopeo, such as --tls-verify=false for a registry on this machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly prefix=${SLUICE_IMAGE_PREFIX-ghcr.io/sluice-dev/}
readonly architectures=(amd64 arm64)

die() { echo "push.sh: $*" >&2; exit 1; }

tag=${1:?usage: push.sh TAG}
read -ra options <<<"${SLUICE_PUSH_OPTIONS:-}"
work=$(mktemp -d)
temporary=("$work")
# As root, buildah and skopeo also write to this directory, which no option changes.
[ -e /var/lib/containers ] || temporary+=(/var/lib/containers)
trap 'rm -rf "${temporary[@]}"' EXIT
with_buildah() {
  TMPDIR=$work buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"
}

for image in operator sidecar service; do
  reference=${prefix}sluice-$image:$tag
  with_buildah manifest create "$image" >/dev/null
  for arch in "${architectures[@]}"; do
    archive=images/sluice-$image-$arch.tar
    [ -e "$archive" ] || die "$archive does not exist: run hack/images.sh --arch $arch $tag"
    with_buildah manifest add "$image" "docker-archive:$archive" >/dev/null
  done
  with_buildah manifest push --quiet --all --format oci --digestfile "$work/digest" "${options[@]}" \
    "$image" "docker://$reference" >&2
  digest=$(cat "$work/digest")
  echo "$image=$digest"
  # From the registry, since pushing may compress layers and so change the digests of the images.
  skopeo inspect --raw "${options[@]}" "docker://${reference%:*}@$digest" | python3 -c '
import json, sys
for image in json.load(sys.stdin)["manifests"]:
    print(sys.argv[1], "-", image["platform"]["architecture"], "=", image["digest"], sep="")' "$image"
done
