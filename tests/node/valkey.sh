#!/usr/bin/env bash
# valkey.sh: print the path of a valkey-server for the tests, fetching it if need be; nothing if this system has none.
# One on the PATH is taken. Otherwise Debian's package is unpacked, not installed, into ${SLUICE_CACHE:-~/.cache/sluice}:
# from the suites that apt knows, or from the backports of this release, at the mirror that apt uses.
set -euo pipefail

log() { echo "valkey.sh: $*" >&2; }
die() { log "$*"; exit 1; }

if PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v valkey-server; then exit; fi

root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/valkey
server=$root/usr/bin/valkey-server
readonly root server
if "$server" --version >/dev/null 2>&1; then
  echo "$server"
  exit
fi
if ! command -v apt-get >/dev/null; then
  log "no valkey-server here, and no apt-get to fetch it with: its test is skipped"
  exit
fi

work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/etc" "$work/root"

# Of the base system's repository, with the keys that come with it. Nothing outside of the folder above is changed.
distribution=$(. /etc/os-release && echo "$ID")
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' |
  awk -v release="$codename" '$1 == release { print $2; exit }')
key=$(ls "/usr/share/keyrings/$distribution-archive-keyring".[gp]* 2>/dev/null | head -n 1) || true
if [ -z "$mirror" ]; then
  log "apt knows no repository of $codename: the test of Valkey is skipped"
  exit
fi
suites=("$codename" "$codename-updates")
components=main
case "$distribution" in
  debian) suites+=("$codename-backports") ;;
  ubuntu) components="main universe" ;;
esac
for suite in "${suites[@]}"; do
  echo "deb ${key:+[signed-by=$key] }$mirror $suite $components"
done >"$work/etc/sources.list"

readonly options=(
  -qq -o "Dir::Etc::SourceList=$work/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work" -o "Dir::Cache::Archives=$work/archives"
  -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false
)
attempt() { # attempt COMMAND...: its output only when it fails
  "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "failed: $*"; }
}
attempt apt-get "${options[@]}" update
packages=()
# Distributions have the programs in one of these two.
for package in valkey-tools valkey-server; do
  if apt-cache "${options[@]}" show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
done
if [ ${#packages[@]} -eq 0 ]; then
  log "$codename has no Valkey: its test is skipped"
  exit
fi
cd "$work/archives"
attempt apt-get "${options[@]}" download "${packages[@]}"
for package in *.deb; do dpkg -x "$package" "$work/root"; done
"$work/root/usr/bin/valkey-server" --version >"$work/log" 2>&1 || die "it does not run here: $(head -n 3 "$work/log")"
rm -rf "$root"
mkdir -p "$(dirname "$root")"
mv "$work/root" "$root"
log "unpacked $("$server" --version | cut -d ' ' -f 1-3)"
echo "$server"
