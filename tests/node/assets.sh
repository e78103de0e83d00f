#!/usr/bin/env bash
# assets.sh helm|apiserver|node: build the Kubernetes programs that the tests run, and print their directory.
#   helm        Helm alone
#   apiserver   kube-apiserver, kubectl and etcd: a valid KUBEBUILDER_ASSETS
#   node        the same, and the rest of a node: controller manager, scheduler, kubelet, proxy, CoreDNS, Helm,
#               pause, toolbox
# SLUICE_KUBERNETES chooses the version of Kubernetes, for instance 1.30. The default is that of tools/kubernetes.
# SLUICE_HELM chooses Helm 3, the default, or 4.
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

versions() { # print each version that SLUICE_KUBERNETES can choose, and the directory of its module
  local module version
  for module in "$here"/tools/kubernetes{,-*}; do
    version=$(module_version "tools/${module##*/}" k8s.io/kubernetes)
    version=${version#v}
    echo "${version%.*} tools/${module##*/}"
  done
}

k8s_ldflags() { # k8s_ldflags VERSION: without these flags the programs report the version v0.0.0 to clients
  local stamp=k8s.io/component-base/version major minor
  IFS=. read -r major minor _ <<<"${1#v}"
  echo "-X $stamp.gitVersion=$1 -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor -X $stamp.gitTreeState=clean"
}

default_module=tools/kubernetes
k8s_module=$default_module
if [ -n "${SLUICE_KUBERNETES:-}" ]; then
  # As strings: as numbers 1.3 and 1.30 are equal.
  k8s_module=$(versions | awk -v wanted="$SLUICE_KUBERNETES" '$1 "" == wanted "" { print $2 }')
  [ -n "$k8s_module" ] || die "SLUICE_KUBERNETES is one of $(versions | cut -d ' ' -f 1 | xargs), not '$SLUICE_KUBERNETES'"
fi
default_version=$(module_version $default_module k8s.io/kubernetes)
k8s_version=$(module_version "$k8s_module" k8s.io/kubernetes)
case ${SLUICE_HELM:-3} in
  3) helm=v3 helm_module=tools/helm ;;
  4) helm=v4 helm_module=tools/helm-4 ;;
  *) die "SLUICE_HELM is 3 or 4, not '$SLUICE_HELM'" ;;
esac
helm_version=$(module_version $helm_module helm.sh/helm/$helm)
readonly default_module k8s_module default_version k8s_version helm helm_module helm_version
k8s=k8s.io/kubernetes/cmd

# A part is NAME DIRECTORY LDFLAGS PACKAGE.... Each binary is named after the last element of its package.
helm_parts() { # helm_parts DO: call DO with each part
  "$1" helm $helm_module "-X helm.sh/helm/$helm/internal/version.version=$helm_version" helm.sh/helm/$helm/cmd/helm
}
apiserver_parts() {
  "$1" apiserver "$k8s_module" "$(k8s_ldflags "$k8s_version")" $k8s/kube-apiserver
  # The default version's kubectl for all versions: 1.30's does not take a manifest that begins with a brace for YAML.
  "$1" kubectl $default_module "$(k8s_ldflags "$default_version")" $k8s/kubectl
}
node_parts() {
  apiserver_parts "$1"
  "$1" node "$k8s_module" "$(k8s_ldflags "$k8s_version")" \
    $k8s/kube-controller-manager $k8s/kube-scheduler $k8s/kubelet $k8s/kube-proxy
  "$1" coredns tools/coredns "" sluice.dev/tests/node/tools/coredns
  helm_parts "$1"
  "$1" pause pause "" sluice.dev/tests/node/pause
  "$1" toolbox toolbox "" sluice.dev/tests/node/toolbox
}

cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
root=$cache/kubernetes-${k8s_version#v}
# What does not depend on the chosen version is here, and other versions have links to it.
default_root=$cache/kubernetes-${default_version#v}
# The default Helm is there too. Another one is apart, and so are the programs that are offered with it.
helm_root=$default_root offered=$root
if [ $helm != v3 ]; then helm_root=$cache/helm-${helm_version#v} offered=$root-helm-${helm#v}; fi
mkdir -p {"$root","$default_root","$helm_root"}/{bin,stamps} "$offered/bin"
readonly cache root default_root helm_root offered bin=$offered/bin

home() { # home NAME: print the directory of the part
  case $1 in apiserver | node) echo "$root" ;; helm) echo "$helm_root" ;; *) echo "$default_root" ;; esac
}

inputs() { # inputs DIRECTORY: print a digest of the part's sources
  find "$here/$1" -type f \( -name '*.go' -o -name 'go.*' \) -print0 | sort -z | xargs -0 cat | sha256sum
}

fresh() { # fresh NAME DIRECTORY LDFLAGS PACKAGE...: succeed if the cached binaries are current
  local home package
  home=$(home "$1")
  [ "$(cat "$home/stamps/$1" 2>/dev/null || true)" = "$(inputs "$2")" ] || return 1
  for package in "${@:4}"; do [ -x "$home/bin/${package##*/}" ] || return 1; done
}

# Complete binaries are moved into place, and the stamp is written last, so that a killed build never looks complete.
build() { # build NAME DIRECTORY LDFLAGS PACKAGE...
  local name=$1 directory=$2 ldflags=$3 home out started=$SECONDS
  if fresh "$@"; then return; fi
  home=$(home "$name")
  shift 3
  command -v go >/dev/null || die "go is not installed (https://go.dev/dl/); it is needed to build Kubernetes for the tests"
  log "building ${*##*/}"
  out=$(mktemp -d "$home/build.XXXXXX")
  if ! (cd "$here/$directory" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    nice go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w $ldflags" -o "$out/" "$@" 1>&2); then
    rm -rf "$out"
    die "building ${*##*/} failed"
  fi
  rm -f "$home/stamps/$name"
  mv -f "$out"/* "$home/bin/"
  rmdir "$out"
  inputs "$directory" >"$home/stamps/$name"
  log "built ${*##*/} in $((SECONDS - started)) s"
}

link() { # link PROGRAM: offer it in the printed directory
  [ "$(readlink "$bin/${1##*/}" 2>/dev/null || true)" = "$1" ] || ln -sfn "$1" "$bin/${1##*/}"
}

link_part() { # link_part NAME DIRECTORY LDFLAGS PACKAGE...: unless the part is in the printed directory itself
  local home package
  home=$(home "$1")
  [ "$home" != "$offered" ] || return 0
  for package in "${@:4}"; do link "$home/bin/${package##*/}"; done
}

# Debian's etcd works with the API server and does not need to be built.
link_etcd() {
  local etcd
  # Skips the links to it, in case the directory of some version is on the PATH.
  etcd=$(PATH="$PATH:/usr/bin:/usr/sbin" type -aP etcd | grep -vF "$cache/" | head -n 1) ||
    die "etcd is not installed: run tests/node/apt.sh test"
  link "$etcd"
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
    exec 9>"$cache/kubernetes.lock" # one for all versions, because they share parts
    flock -n 9 || { log "waiting for another build"; flock 9; }
    rm -rf {"$root","$default_root","$helm_root"}/build.* # left by a killed build: no other build runs while this one holds the lock
    $parts build
  fi
  $parts link_part
  echo "$bin"
}

main "$@"
