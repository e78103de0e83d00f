#!/usr/bin/env bash
# install.sh APPLICATION: install express, asgi, go or tomcat, and print the directory.
# Everything goes to ${SLUICE_CACHE:-~/.cache/sluice}/applications. What is there already is not installed again.
set -euo pipefail

application=${1:?usage: install.sh express|asgi|go|tomcat}
source=$(cd "$(dirname "$0")/$application" && pwd)
version=$(cat "$0" "$source"/* | sha256sum | cut -c 1-16)
root=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/applications/$application-$version
readonly application source version root

if [ -d "$root" ]; then
  echo "$root"
  exit
fi
work=$(mktemp -d)
readonly work
trap 'rm -rf "$work"' EXIT
cp -r "$source" "$work/new"
cd "$work/new"
case "$application" in
  express) command=(npm ci --no-audit --no-fund) ;;
  asgi) command=(python3 -m pip install --quiet --require-hashes --target . --requirement requirements.txt) ;;
  go) command=(env CGO_ENABLED=0 go build -mod=readonly -o application .) ;;
  tomcat)
    plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
    command=(mvn --quiet --batch-mode --strict-checksums "$plugin:copy-dependencies" -DoutputDirectory=lib)
    ;;
esac
if ! "${command[@]}" >"$work/log" 2>&1; then
  tail -n 20 "$work/log" >&2
  echo "install.sh: failed: ${command[*]}" >&2
  exit 1
fi
mkdir -p "$(dirname "$root")"
# Another process may have been faster.
mv -T "$work/new" "$root" 2>/dev/null || [ -d "$root" ]
echo "$root"
