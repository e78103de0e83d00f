#!/usr/bin/env bash
# install.sh APPLICATION: install an application of this directory, and print where it is.
# Everything goes to ${SLUICE_CACHE:-~/.cache/sluice}/applications. What is there already is not installed again.
set -euo pipefail

application=${1:?usage: install.sh APPLICATION}
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
if [ -f package-lock.json ]; then
  command=(npm ci --no-audit --no-fund)
elif [ -f requirements.txt ]; then
  command=(python3 -m pip install --quiet --require-hashes --target . --requirement requirements.txt)
elif [ -f go.mod ]; then
  command=(env CGO_ENABLED=0 go build -mod=readonly -o application .)
elif [ -f pom.xml ]; then
  plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
  command=(mvn --quiet --batch-mode --strict-checksums "$plugin:copy-dependencies" -DoutputDirectory=lib)
elif [ -f Application.cs ]; then
  command=(mcs -out:application.exe Application.cs)
elif [ -f nginx.conf ] || [ -f run ]; then
  # Debian packages are all that it needs.
  command=(true)
else
  echo "install.sh: nothing to install for $application" >&2
  exit 1
fi
if ! "${command[@]}" >"$work/log" 2>&1; then
  tail -n 20 "$work/log" >&2
  echo "install.sh: failed: ${command[*]}" >&2
  exit 1
fi
mkdir -p "$(dirname "$root")"
# Another process may have been faster.
mv -T "$work/new" "$root" 2>/dev/null || [ -d "$root" ]
echo "$root"
