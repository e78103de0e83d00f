#!/usr/bin/env bash
# build.sh FOLDER: build this program in FOLDER, and print its path.
# limitador 0.14.0 as published does not compile with redis_storage alone: two functions are gated by disk_storage, which
# would compile RocksDB. It also needs OpenSSL, for TLS that is not used here. The build uses a copy of its source without
# those two gates and without TLS. The measured code is unchanged.
set -euo pipefail

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
folder=$(realpath -m "$1")
readonly here folder version=0.14.0

published=$(cargo metadata --locked --format-version 1 --manifest-path "$here/Cargo.toml" |
  grep -o "\"manifest_path\":\"[^\"]*/limitador-$version/Cargo.toml\"" | cut -d '"' -f 4 | head -n 1)
mkdir -p "$folder/peer" "$folder/src/support"
# Unchanged files keep their modification times, so that they are not compiled again.
copy() { cp -ru --preserve=timestamps "$@"; }
copy "$here/src" "$here/Cargo.toml" "$here/Cargo.lock" "$folder/peer/"
copy "$here/../src/support/random.rs" "$folder/src/support/"
if [ ! -e "$folder/limitador-$version" ]; then
  cp -r --preserve=timestamps "$(dirname "$published")" "$folder/limitador-$version"
  for file in storage/keys counter; do
    file=$folder/limitador-$version/src/$file.rs
    [ "$(grep -c '^ *#\[cfg(feature = "disk_storage")\]$' "$file")" = 1 ]
    sed -i '/^ *#\[cfg(feature = "disk_storage")\]$/d' "$file"
  done
  sed -i '/"\(tokio-\)\?\(tls-native-tls\|native-tls-comp\)",/d' "$folder/limitador-$version/Cargo.toml"
fi
cd "$folder/peer"
options=(--config "patch.crates-io.limitador.path=\"$folder/limitador-$version\"")
# The patch changes the lock file, so it cannot be used with --locked at once. It may only remove packages.
versions() { awk '$1 == "name" { name = $3 } $1 == "version" { print name, $3 }' "$1" | sort; }
cargo metadata --format-version 1 "${options[@]}" >/dev/null
new=$(comm -13 <(versions "$here/Cargo.lock") <(versions Cargo.lock))
[ -z "$new" ] || { echo "build.sh: not locked: $new" >&2; exit 1; }
cargo build --release --quiet --locked --target-dir "$folder/target" "${options[@]}"
echo "$folder/target/release/sluice-bench-limitador"
