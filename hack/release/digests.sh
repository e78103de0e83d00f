#!/usr/bin/env bash
# digests.sh [OPERATOR SIDECAR SERVICE]: print values of the chart that name its images by digest. OPERATOR, SIDECAR and SERVICE
# are the digests of the pushed images. The digest of the embedded Redis is what its tag in the chart's values stands for in its
# registry now. Needs skopeo and that registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

redis_image() { # print a field of redis.image in the chart's values
  awk -v field="$1:" '
    /^[a-z]/ { top = $1 } /^  [a-z]/ { section = $1 }
    top == "redis:" && section == "image:" && $1 == field { print $2; exit }' charts/sluice/values.yaml
}

tag=$(redis_image tag)
redis=$(skopeo inspect --no-tags --format '{{.Digest}}' "docker://$(redis_image registry)/$(redis_image repository):$tag")
for digest in "$@" "$redis"; do
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || { echo "digests.sh: $digest is not a digest" >&2; exit 1; }
done
cat <<END
# The images of Sluice $(hack/version.py) by digest: helm install --values THIS_FILE
END
if [ $# = 3 ]; then
  cat <<END
operator:
  image:
    digest: $1
sidecar:
  image:
    digest: $2
service:
  image:
    digest: $3
END
fi
cat <<END
redis:
  image:
    # $tag on $(date -u +%Y-%m-%d)
    digest: $redis
END
