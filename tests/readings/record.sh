#!/usr/bin/env bash
# record.sh APPLICATION [SERVER]: record how an application reads the spellings of spellings.json.
# The table is APPLICATION.tsv or APPLICATION-SERVER.tsv.
set -euo pipefail

application=${1:?usage: record.sh APPLICATION [SERVER]}
server=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
installed=$("$here/../applications/install.sh" "$application")
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
log=$(mktemp)
readonly application server here installed port log

# Prints the versions of the direct dependencies. `# server: NAME ...` in requirements.in marks those of some servers.
versions() {
  cd "$installed"
  if [ -f requirements.in ]; then
    python3 --version
    awk -F ' *# server: ' -v server="$server" '!/^#/ && (NF < 2 || index(" " $2 " ", " " server " ")) { sub("==", " ", $1); print $1 }' requirements.in
  elif [ -f package.json ]; then
    node -p '[`Node.js ${process.version.slice(1)}`, ...Object.entries(require("./package.json").dependencies ?? {}).map((d) => d.join(" "))].join("\n")'
  elif [ -f go.mod ]; then
    go env GOVERSION | sed 's/^go/Go /'
    { grep -v '// indirect' go.mod || true; } | sed -n 's/^\(require\)\?[[:space:]]*\([^[:space:]]*\/[^[:space:]]*\) v\(.*\)/\2 \3/p'
  elif [ -f pom.xml ]; then
    java --version | sed -n '1s/^[^ ]* \([^ ]*\).*/Java \1/p'
    # The first name is that of the application.
    sed -n 's/.*<\(artifactId\|version\)>\(.*\)<.*/\2/p' pom.xml | tail -n +3 | paste -d ' ' - -
  elif [ -f Application.cs ]; then
    mono --version | sed -n '1s/.* version \([^ ]*\).*/Mono \1/p'
  elif [ -f app.psgi ]; then
    perl -MDancer2 -MStarman -e 'printf "Perl %vd\nDancer2 %s\nStarman %s\n", $^V, Dancer2->VERSION, Starman->VERSION'
  elif [ -f config.ru ]; then
    ruby -r rack -e 'puts "Ruby #{RUBY_VERSION}", "Rack #{Rack.release}"'
    case "$server" in
      puma) puma --version | sed 's/^puma version/Puma/' ;;
      webrick) ruby -r webrick -e 'puts "WEBrick #{WEBrick::VERSION}"' ;;
    esac
  elif [ -f index.php ]; then
    php -r 'echo "PHP ", PHP_VERSION, "\n";'
    case "$server" in
      fpm) PATH="$PATH:/usr/local/sbin:/usr/sbin" nginx -v 2>&1 | sed 's/^.*nginx\//nginx /' ;;
      apache) PATH="$PATH:/usr/local/sbin:/usr/sbin" apache2 -v | sed -n 's/^.*Apache\/\([^ ]*\).*/Apache \1/p' ;;
    esac
  elif [ -f haproxy.cfg ]; then
    PATH="$PATH:/usr/local/sbin:/usr/sbin" haproxy -v | sed -n '1s/^.* version \([^-]*\).*/HAProxy \1/p'
  elif [ -f nginx.conf ]; then
    PATH="$PATH:/usr/local/sbin:/usr/sbin" nginx -v 2>&1 | sed 's/^.*nginx\//nginx /'
  fi
}

# The server may have workers: the whole group ends.
set -m
(cd "$installed" && exec ./run "$port" ${server:+"$server"}) >"$log" 2>&1 &
process=$!
disown
set +m
trap 'kill -KILL -- "-$process" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then ready=1; break; fi
  kill -0 "$process" 2>/dev/null || break
  sleep 0.2
done
if [ -z "${ready:-}" ]; then
  tail -n 20 "$log" >&2
  echo "record.sh: $application does not listen" >&2
  exit 1
fi
python3 "$here/record.py" "$application${server:+-$server}" "$port" --versions "$(versions | paste -sd, | sed 's/,/, /g')"
