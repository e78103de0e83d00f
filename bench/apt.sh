#!/usr/bin/env bash
# apt.sh PACKAGE=COMMAND...: install the Debian packages whose command is missing, without starting a daemon.
set -euo pipefail

readonly POLICY=/usr/sbin/policy-rc.d

die() { echo "apt.sh: $*" >&2; exit 1; }

packages=()
for entry in "$@"; do
  PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "${entry#*=}" >/dev/null || packages+=("${entry%%=*}")
done
[ ${#packages[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || die "this is not Debian or Ubuntu; install the equivalents of: ${packages[*]}"
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die "need root (and there is no sudo) to install: ${packages[*]}"
  exec sudo "$(realpath "$0")" "$@"
fi

# Debian starts a daemon as soon as its package is installed. policy-rc.d is the documented way to forbid that; an
# existing one is restored.
work=$(mktemp -d)
restore() {
  if [ -e "$work/policy-rc.d" ]; then cp -a "$work/policy-rc.d" "$POLICY"; else rm -f "$POLICY"; fi
  rm -rf "$work"
}
if [ -e "$POLICY" ]; then cp -a "$POLICY" "$work/policy-rc.d"; fi
trap restore EXIT
printf '#!/bin/sh\nexit 101\n' >"$work/new"
install -m 755 "$work/new" "$POLICY"

echo "apt.sh: installing ${packages[*]}" >&2
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; die "failed: $*"; }; }
quietly apt-get -qq -o DPkg::Lock::Timeout=300 update
quietly apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}"
