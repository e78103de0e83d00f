#!/usr/bin/env bash
# images.sh: build the images that every node of node.sh starts with, and print the directory of their archives.
#   sluice.local/pause:test     the process that holds a pod's namespaces
#   sluice.local/coredns:test   the cluster's DNS
#   sluice.local/toolbox:test   echo server and load generator, see toolbox/main.go
#   sluice.local/redis:test     Debian's redis-server, redis-cli and sh. Runs as any user, with a read-only root; /data is
#                               writable by all. A pod that gives its own args needs `--protected-mode no` among them.
# They are cached beside the programs of assets.sh and built again only when their content changes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$("$here/assets.sh" node)
images=$(dirname "$bin")/images
mkdir -p "$images"
readonly here bin images

exec 9>"$images/.lock"
flock 9

# Compares the files' sizes and times instead of their content: hashing 100 MB would be the slowest part of every start.
inputs() { # inputs FILE...
  { cat "${BASH_SOURCE[0]}" "$here/image.py"; stat -L -c '%n %s %Y' "$@"; } | sha256sum
}

image() { # image NAME "FILE..." OPTION...: build NAME.tar unless it is current
  local name=$1 files sum
  read -ra files <<<"$2"
  sum=$(inputs "${files[@]}")
  if [ -f "$images/$name.tar" ] && [ "$(cat "$images/.$name.stamp" 2>/dev/null || true)" = "$sum" ]; then return; fi
  python3 "$here/image.py" "sluice.local/$name:test" "$images/$name.tar" "${@:3}"
  echo "$sum" >"$images/.$name.stamp"
  echo "images.sh: made sluice.local/$name:test" >&2
}

program() { # program NAME
  command -v "$1" || { echo "images.sh: $1 is not installed: run tests/node/apt.sh node" >&2; exit 1; }
}

main() {
  local redis_server redis_cli
  redis_server=$(program redis-server)
  redis_cli=$(program redis-cli)
  image pause "$bin/pause" --file "$bin/pause:/pause" --entrypoint /pause --user 65535:65535
  image coredns "$bin/coredns" --file "$bin/coredns:/coredns" --entrypoint /coredns --dir /etc
  image toolbox "$bin/toolbox" --file "$bin/toolbox:/toolbox" --entrypoint /toolbox --user 65532:65532 \
    --dir /etc --dir /tmp:1777
  image redis "$redis_server $redis_cli /bin/sh" --bin "$(readlink -f /bin/sh):/bin/sh" --bin "$redis_server:/usr/bin/redis-server" --bin "$redis_cli:/usr/bin/redis-cli" \
    --entrypoint redis-server --cmd=--protected-mode,no --user 65532:65532 \
    --dir /etc --dir /data:1777 --dir /tmp:1777 --workdir /data
  echo "$images"
}

main
