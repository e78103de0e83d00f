#!/usr/bin/env bash
# assets.sh helm|apiserver|node: build the Kubernetes programs that the tests run, and print their directory.
#   helm        Helm alone
#   apiserver   kube-apiserver, kubectl and etcd: a valid KUBEBUILDER_ASSETS
#   node        the same, and the rest of a node: controller manager, scheduler, kubelet, proxy, CoreDNS, Helm,
#               pause, toolbox
# The Go modules in tools/ pin the versions. Results are cached in ${SLUICE_CACHE:-~/.cache/sluice}. A part is built
# again only when its sources change. Standard output carries nothing but the directory.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

log() { echo "assets.sh: $*" >&2; }
die() { log "$*"; exit 1; }

module_version() { # module_version tools/X MODULE: print the version that go.mod pins
  sed -nE "s#^(require)?[[:space:]]*$2 (v[^ ]+).*#\2#p" "$here/$1/go.mod" | head -n 1
}

# A part is NAME DIRECTORY LDFLAGS PACKAGE.... Each binary is named after the last element of its package.
k8s_version=$(module_version tools/kubernetes k8s.io/kubernetes)
helm_version=$(module_version tools/helm helm.sh/helm/v3)
IFS=. read -r k8s_major k8s_minor _ <<<"${k8s_version#v}"
k8s_stamp=k8s.io/component-base/version
# Without these flags the programs report the version v0.0.0 to clients.
k8s_ldflags="-X $k8s_stamp.gitVersion=$k8s_version -X $k8s_stamp.gitMajor=$k8s_major -X $k8s_stamp.gitMinor=$k8s_minor"
k8s_ldflags+=" -X $k8s_stamp.gitTreeState=clean"
readonly k8s_version helm_version k8s_major k8s_minor k8s_stamp k8s_ldflags
k8s=k8s.io/kubernetes/cmd

helm_parts() { # helm_parts DO: call DO with each part
  "$1" helm tools/helm "-X helm.sh/helm/v3/internal/version.version=$helm_version" helm.sh/helm/v3/cmd/helm
}
apiserver_parts() {
  "$1" apiserver tools/kubernetes "$k8s_ldflags" $k8s/kube-apiserver $k8s/kubectl
}
node_parts() {
  apiserver_parts "$1"
  "$1" node tools/kubernetes "$k8s_ldflags" $k8s/kube-controller-manager $k8s/kube-scheduler $k8s/kubelet $k8s/kube-proxy
  "$1" coredns tools/coredns "" sluice.dev/tests/node/tools/coredns
  helm_parts "$1"
  "$1" pause pause "" sluice.dev/tests/node/pause
  "$1" toolbox toolbox "" sluice.dev/tests/node/toolbox
}

root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/kubernetes-${k8s_version#v}
mkdir -p "$root/bin" "$root/stamps"
root=$(cd "$root" && pwd)
readonly root bin=$root/bin

inputs() { # inputs DIRECTORY: print a digest of the part's sources
  find "$here/$1" -type f \( -name '*.go' -o -name 'go.*' \) -print0 | sort -z | xargs -0 cat | sha256sum
}

fresh() { # fresh NAME DIRECTORY LDFLAGS PACKAGE...: succeed if the cached binaries are current
  local package
  [ "$(cat "$root/stamps/$1" 2>/dev/null || true)" = "$(inputs "$2")" ] || return 1
  for package in "${@:4}"; do [ -x "$bin/${package##*/}" ] || return 1; done
}

# Complete binaries are moved into place, and the stamp is written last, so that a killed build never looks complete.
build() { # build NAME DIRECTORY LDFLAGS PACKAGE...
  local name=$1 directory=$2 ldflags=$3 out started=$SECONDS
  if fresh "$@"; then return; fi
  shift 3
  command -v go >/dev/null || die "go is not installed (https://go.dev/dl/); it is needed to build Kubernetes for the tests"
  log "building ${*##*/}"
  out=$(mktemp -d "$root/build.XXXXXX")
  if ! (cd "$here/$directory" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    nice go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w $ldflags" -o "$out/" "$@" 1>&2); then
    rm -rf "$out"
    die "building ${*##*/} failed"
  fi
  rm -f "$root/stamps/$name"
  mv -f "$out"/* "$bin/"
  rmdir "$out"
  inputs "$directory" >"$root/stamps/$name"
  log "built ${*##*/} in $((SECONDS - started)) s"
}

# Debian's etcd works with the API server and does not need to be built.
link_etcd() {
  local etcd
  # Skips the link itself, in case this directory is on the PATH.
  etcd=$(PATH="$PATH:/usr/bin:/usr/sbin" type -aP etcd | grep -vxF "$bin/etcd" | head -n 1) ||
    die "etcd is not installed: run tests/node/apt.sh test"
  [ "$(readlink "$bin/etcd" 2>/dev/null || true)" = "$etcd" ] || ln -sfn "$etcd" "$bin/etcd"
}

main() {
  local stale=0 parts
  case "${1:-}" in
    helm) parts=helm_parts ;;
    apiserver) parts=apiserver_parts ;;
    node) parts=node_parts ;;
    *) echo "usage: $0 helm|apiserver|node" >&2; exit 2 ;;
  esac
  [ $parts = helm_parts ] || link_etcd
  check() { fresh "$@" || stale=1; }
  $parts check
  if [ $stale = 1 ]; then
    exec 9>"$root/lock"
    flock -n 9 || { log "waiting for another build"; flock 9; }
    rm -rf "$root"/build.* # left by a killed build: no other build runs while this one holds the lock
    $parts build
  fi
  echo "$bin"
}

main "$@"
