#!/usr/bin/env bash
# apt.sh lint|test|node|interop|release: install the Debian packages that are missing, and nothing else.
#   lint      what `make lint` needs besides Rust and Go
#   test      what the tests against a bare API server need
#   node      the same, and what a real node needs (node.sh)
#   interop   the same, and what `make interop` needs besides Rust, Go, Java and Maven
#   release   what hack/release.sh needs for both architectures
# Their versions are those of the distribution's release, whose signed index has their checksums. They are not pinned, because a
# mirror offers only the newest version of a package.
set -euo pipefail

# PACKAGE or PACKAGE=COMMAND. The second form counts as installed when the command exists, since another package may
# provide it: containerd.io provides containerd, and installing Debian's package would remove it.
readonly LINT_PACKAGES=(python3=python3 python3-pip=pip3 nodejs=node shellcheck=shellcheck git=git)
readonly TEST_PACKAGES=(
  redis-server=redis-server redis-tools=redis-cli etcd-server=etcd
  curl=curl openssl=openssl ca-certificates
  nginx=nginx haproxy=haproxy nodejs=node npm=npm python3=python3 python3-pip=pip3
  prometheus=prometheus lua5.4=lua5.4
)
readonly NODE_PACKAGES=(
  containerd=containerd runc=runc containernetworking-plugins
  iptables=iptables nftables=nft iproute2=ip conntrack=conntrack socat=socat
  kmod=modprobe procps=sysctl util-linux=nsenter mount=mount bc=bc python3=python3 buildah=buildah
)
readonly INTEROP_PACKAGES=(
  mono-mcs=mcs
  starman=starman libdancer2-perl
  ruby-rack puma=puma ruby-webrick
  php-cli=php php-fpm apache2=apache2 libapache2-mod-php
)
readonly RELEASE_PACKAGES=(
  gcc-aarch64-linux-gnu=aarch64-linux-gnu-gcc libc6-dev-arm64-cross buildah=buildah skopeo=skopeo python3=python3
)
readonly POLICY=/usr/sbin/policy-rc.d

die() { echo "apt.sh: $*" >&2; exit 1; }

# Daemons live in sbin, which an ordinary user's PATH may lack.
has_command() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null; }

installed() { # installed PACKAGE
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

missing() { # missing PACKAGE[=COMMAND]...: print the names of the packages to install
  local entry package command
  for entry in "$@"; do
    package=${entry%%=*} command=${entry#"$package"}
    installed "$package" && continue
    [ -n "$command" ] && has_command "${command#=}" && continue
    echo "$package"
  done
}

# Debian starts a daemon as soon as its package is installed, but the tests start their own. policy-rc.d is the
# documented way to prevent it. A file that was there before is restored afterwards.
forbid_daemons() {
  work=$(mktemp -d)
  trap restore_daemons EXIT
  if [ -e "$POLICY" ]; then cp -a "$POLICY" "$work/policy-rc.d"; fi
  printf '#!/bin/sh\nexit 101\n' >"$work/new"
  install -m 755 "$work/new" "$POLICY"
}
restore_daemons() {
  if [ -e "$work/policy-rc.d" ]; then cp -a "$work/policy-rc.d" "$POLICY"; else rm -f "$POLICY"; fi
  rm -rf "$work"
}

quietly() { # quietly COMMAND...: show its output only when it fails
  "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die "failed: $*"; }
}

main() {
  local wanted=() packages=()
  case "${1:-}" in
    lint) wanted=("${LINT_PACKAGES[@]}") ;;
    test) wanted=("${TEST_PACKAGES[@]}") ;;
    node) wanted=("${TEST_PACKAGES[@]}" "${NODE_PACKAGES[@]}") ;;
    interop) wanted=("${TEST_PACKAGES[@]}" "${NODE_PACKAGES[@]}" "${INTEROP_PACKAGES[@]}") ;;
    release) wanted=("${RELEASE_PACKAGES[@]}") ;;
    *) echo "usage: $0 lint|test|node|interop|release" >&2; exit 2 ;;
  esac
  if ! command -v apt-get >/dev/null; then
    die "this is not Debian or Ubuntu; install the equivalents of: ${wanted[*]%%=*}"
  fi

  mapfile -t packages < <(missing "${wanted[@]}")
  [ ${#packages[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "need root (and there is no sudo) to install: ${packages[*]}"
    exec sudo "$(realpath "$0")" "$1"
  fi

  echo "apt.sh: installing ${packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  forbid_daemons
  quietly apt-get -qq -o DPkg::Lock::Timeout=300 update
  quietly apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}"
}

main "$@"
