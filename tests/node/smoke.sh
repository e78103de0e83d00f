#!/usr/bin/env bash
# smoke.sh [N]: check that a cluster of N nodes (default 1) does what the tests rely on and leaves nothing behind.
# Prints a one-line summary. Errors go to standard error.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
nodes=${1:-1}
work=$(mktemp -d)
readonly here nodes work
failures=()

check() { # check WHAT COMMAND...
  local what=$1
  shift
  "$@" >"$work/out" 2>&1 && return
  failures+=("$what")
  { echo "smoke.sh: $what failed: $*"; tail -n 20 "$work/out"; } >&2
}

# Prints the state of everything on this machine that a cluster changes. Names are matched, because other programs may
# use this machine at the same time.
machine() {
  ip -o link | grep -oE 'sluice[^:@ ]*' || true
  ip -4 route | grep -E '^10\.(96|200|244)\.' || true
  find /sys/fs/cgroup -maxdepth 2 -name 'sluice-*'
  grep -E "sluice|kubelet|containerd|${SLUICE_NODE_DIR:-/\.node}/" /proc/mounts || true
  sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes
  find /var/lib/kubelet /var/lib/containerd /var/lib/cni /etc/cni /var/log/pods /var/log/containers -maxdepth 0 2>/dev/null || true
  grep -lz '^SLUICE_NODE_MARK=' /proc/[0-9]*/environ 2>/dev/null || true
  find /run/lock -maxdepth 1 -name 'sluice*'
}

both_pods_answer() { # both_pods_answer SERVICE_IP: 100 new connections all reach the same pod about once in 2^99 runs
  toolbox load -n 100 -c 4 "http://$1/" |
    python3 -c 'import json, sys; r = json.load(sys.stdin); print(r); sys.exit(r["status"] != {"200": 100} or len(r["byPod"]) != 2)'
}

machine >"$work/before"
trap 'rm -rf "$work"' EXIT
started=$SECONDS
if ! "$here/node.sh" up "$nodes" >"$work/env" 2>"$work/up.log"; then
  cat "$work/up.log" >&2
  echo "smoke: FAILED: up"
  exit 1
fi
trap '"$here/node.sh" down; rm -rf "$work"' EXIT
up=$((SECONDS - started))
# shellcheck source=/dev/null
source "$work/env"

started=$SECONDS
check "apply" kubectl apply -f "$here/smoke.yaml"
check "rollout" kubectl rollout status deployment/echo --timeout=120s
check "a Job with a native sidecar" kubectl wait --for=condition=Complete job/sidecar --timeout=120s
check "Redis" kubectl wait --for=condition=Ready pod/redis --timeout=120s
check "the Service, from this machine" both_pods_answer "$(kubectl get service echo -o 'jsonpath={.spec.clusterIP}')"
check "a pod's address, from this machine" curl -sf -m 10 "http://$(kubectl get pod -l app=echo -o 'jsonpath={.items[0].status.podIP}'):8080/"
check "DNS, from a pod" kubectl exec deployment/echo -- /toolbox get http://echo.default.svc.cluster.local/
check "logs" kubectl logs deployment/echo
check "helm" helm list -A
tests=$((SECONDS - started))

started=$SECONDS
check "down" "$here/node.sh" down
down=$((SECONDS - started))
trap 'rm -rf "$work"' EXIT
machine >"$work/after"
check "nothing left behind" diff "$work/before" "$work/after"

if [ ${#failures[@]} -gt 0 ]; then
  printf -v list '%s; ' "${failures[@]}"
  echo "smoke: FAILED: ${list%; }"
  exit 1
fi
echo "smoke: ok, $nodes node(s): up ${up} s, checks ${tests} s, down ${down} s"
