#!/usr/bin/env bash
# valkey.sh: print the path of a valkey-server for the tests, or fail if this system offers none.
# A valkey-server on the PATH is used. Otherwise the script unpacks Debian's package, without installing it, into
# ${SLUICE_CACHE:-~/.cache/sluice}. The package comes from apt's mirror: from this release, its updates or backports. Its
# version is theirs, as in apt.sh, and apt checks it against their signed index.
set -euo pipefail

log() { echo "valkey.sh: $*" >&2; }
die() { log "$*"; exit 1; }

if PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v valkey-server; then exit; fi

root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/valkey
server=$root/usr/bin/valkey-server
readonly root server
readonly advice="install Valkey, and set SLUICE_VALKEY to its valkey-server"
if "$server" --version >/dev/null 2>&1; then
  echo "$server"
  exit
fi
if ! command -v apt-get >/dev/null; then
  die "there is no valkey-server, and no apt-get to fetch it with: $advice"
fi

work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/etc" "$work/root"

# Uses the base system's repository and its keys. Nothing outside the directory above changes.
distribution=$(. /etc/os-release && echo "$ID")
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Identifier: Packages' |
  awk -v release="$codename" '$1 == release { print $2; exit }')
key=$(ls "/usr/share/keyrings/$distribution-archive-keyring".[gp]* 2>/dev/null | head -n 1) || true
if [ -z "$mirror" ]; then
  die "apt has no repository for $codename: $advice"
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
attempt() { # attempt COMMAND...: show its output only when it fails
  "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "failed: $*"; }
}
attempt apt-get "${options[@]}" update
packages=()
# Depending on the distribution, one of these two packages has the server.
for package in valkey-tools valkey-server; do
  if apt-cache "${options[@]}" show "$package" >/dev/null 2>&1; then packages+=("$package"); fi
done
if [ ${#packages[@]} -eq 0 ]; then
  die "$codename has no Valkey package: $advice"
fi
cd "$work/archives"
attempt apt-get "${options[@]}" download "${packages[@]}"
for package in *.deb; do dpkg -x "$package" "$work/root"; done
"$work/root/usr/bin/valkey-server" --version >"$work/log" 2>&1 || die "the unpacked valkey-server does not run: $(head -n 3 "$work/log")"
rm -rf "$root"
mkdir -p "$(dirname "$root")"
mv "$work/root" "$root"
log "unpacked $("$server" --version | cut -d ' ' -f 1-3)"
echo "$server"
