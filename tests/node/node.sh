#!/usr/bin/env bash
# A real Kubernetes cluster on one Linux machine, without a registry, a container engine or a way out.
#
#   node.sh up [N]              start N nodes (default 1); node1 runs the control plane too
#   node.sh down                stop the nodes and remove every trace; does nothing if there is no node
#   node.sh load IMAGE.tar...   import these images on every node
#   node.sh enter NODE CMD...   run a command in a node (its processes, mounts and network)
#   node.sh kill NODE           end a node without warning, with all its pods, for good; not node1
#   node.sh env                 print a shell script to eval: KUBECONFIG, PATH with kubectl and helm, SLUICE_NODE_HOST
#   node.sh status              nodes, pods and memory; fails when no cluster runs
#
# A node is a process tree in its own pid, mount, network and UTS namespaces. Outside these namespaces `up` creates the
# bridge sluice0 with one link per node, routes to the pods and Services, one cgroup per node, and empty directories as
# mount points. The kubelet also sets a few sysctls for the whole machine. `down` removes or restores all of them.
#
# The machine can reach the API server, pod addresses and ClusterIPs. Pods can reach the machine at 10.200.0.1.
# Environment: SLUICE_NODE_DIR (state, default .node in the repository), SLUICE_CACHE and SLUICE_KUBERNETES (see
# assets.sh), SLUICE_NODE_PROXY (kube-proxy's mode: nftables, the default from Kubernetes 1.31, or iptables).
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$(realpath -m "${SLUICE_NODE_DIR:-$here/../../.node}")
readonly here state pki=$state/pki

# These addresses and names are the machine's, not the state directory's: one cluster at a time.
readonly BRIDGE=sluice0 LOCK=/run/lock/sluice-node.lock
readonly NODE_NET=10.200.0 POD_NET=10.244 SERVICE_NET=10.96.0.0/16 KUBERNETES_IP=10.96.0.1 DNS_IP=10.96.0.10
readonly HOST_IP=$NODE_NET.1 CONTROL_PLANE_IP=$NODE_NET.11
readonly CNI_BIN=/usr/lib/cni CONTAINERD_SOCKET=/run/containerd/containerd.sock
# Before Kubernetes 1.31 nftables is an alpha feature, and off.
case ${SLUICE_KUBERNETES:-} in 1.30) proxy=iptables ;; *) proxy=nftables ;; esac
readonly PROXY_MODE=${SLUICE_NODE_PROXY:-$proxy}
# Sysctls that the kubelet sets and no namespace isolates.
readonly GLOBAL_SYSCTLS=(vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)
# Mount points for a node's own directories. `up` creates those that do not exist, and `down` removes them.
readonly MOUNT_POINTS=(/var/lib/kubelet /var/lib/containerd /var/lib/cni /etc/cni /etc/cni/net.d /var/log/pods /var/log/containers)

log() { printf 'node.sh: %3d s  %s\n' "$SECONDS" "$*" >&2; }
die() { echo "node.sh: $*" >&2; exit 1; }

node_ip() { echo "$NODE_NET.$((10 + ${1#node}))"; }

# shellcheck source=lib/machine.sh
source "$here/lib/machine.sh"
# shellcheck source=lib/certificates.sh
source "$here/lib/certificates.sh"
# shellcheck source=lib/node.sh
source "$here/lib/node.sh"
# shellcheck source=lib/control-plane.sh
source "$here/lib/control-plane.sh"

# --- the running cluster and its owner

# The bridge's alias names the state directory of the running cluster, even if the script that started it was killed.
bridge_owner() { cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null || true; }

owned_by_other() { local owner; owner=$(bridge_owner); [ -n "$owner" ] && [ "$owner" != "$state" ]; }

# Checks only what an ordinary user may read. After a reboot the file still exists, but the bridge does not.
running() { [ -e "$state/ready" ] && [ "$(bridge_owner)" = "$state" ] && [ -d "/proc/$(node_pid node1)" ]; }

require_running() { running || die "no cluster runs from $state: start one with '$0 up'"; }

require_root() { [ "$(id -u)" = 0 ] || die "'$1' needs root (namespaces, mounts, cgroups): try sudo -E $0 $1"; }

# Allows one up or down at a time. Child processes close the lock's descriptor (see unlocked), so the lock ends with
# this process.
lock() {
  mkdir -p "${LOCK%/*}"
  while :; do
    exec 9>"$LOCK"
    flock -w 15 9 || die "another '$(basename "$0") up' or 'down' is running"
    [ ! "$LOCK" -ef /proc/self/fd/9 ] || return 0 # otherwise it was removed while we waited
  done
}
unlock() { rm -f "$LOCK"; exec 9>&-; }
unlocked() { "$@" 9>&-; }

# --- waiting

wait_for() { # wait_for SECONDS WHAT LOGFILE COMMAND...: wait until COMMAND succeeds; show the log's end if it does not
  local deadline=$((SECONDS + $1)) what=$2 logfile=$3
  shift 3
  until unlocked "$@" >/dev/null 2>&1; do
    if ((SECONDS >= deadline)); then
      log "gave up waiting for $what; the end of $logfile:"
      tail -n 25 "$logfile" >&2 || true
      return 1
    fi
    sleep 0.1
  done
  log "$what"
}

kubectl() { unlocked "$bin/kubectl" --kubeconfig "$state/admin.kubeconfig" "$@"; }
apiserver_ready() { [ "$(kubectl get --raw /readyz --request-timeout=5s)" = ok ]; }
node_ready() { # the kubelet's current state; the object may not exist yet
  [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}
has_service_account() { kubectl -n "$1" get serviceaccount default; }

# --- commands

nodes() { # print the names of the cluster's nodes that have not been killed
  local dir
  for dir in "$state"/node*/; do [ ! -e "$dir/init.pid" ] || basename "$dir"; done
}
require_node() { [ -e "$state/$1/init.pid" ] || die "there is no node '$1', only $(nodes | xargs)"; }

load() { # load NODE IMAGE.tar...
  local tar
  for tar in "${@:2}"; do in_node "$1" ctr -n k8s.io images import "$tar" >/dev/null; done
}
load_everywhere() { # load_everywhere IMAGE.tar...: on all nodes in parallel
  local node job jobs=()
  for node in $(nodes); do
    load "$node" "$@" 9>&- &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job"; done
}

kill_node() { # kill_node NODE: as if its machine lost power
  local pid
  [ "$1" != node1 ] || die "node1 has the control plane: use '$0 down'"
  pid=$(node_pid "$1")
  rm "$state/$1/init.pid" # the kernel may give its number to another process
  kill -KILL "$pid"
  wait_for 30 "$1 is dead" "$state/$1/init.log" process_has_ended "$pid"
}
process_has_ended() { [ ! -d "/proc/$1" ]; }

refuse_second() {
  if running; then die "a cluster already runs from $state: use it ('$0 env') or stop it ('$0 down')"; fi
  if owned_by_other; then
    die "a cluster already runs from $(bridge_owner): stop it with 'SLUICE_NODE_DIR=$(bridge_owner) $0 down'"
  fi
}

check_programs() {
  local command missing=()
  for command in containerd ctr runc nft iptables ip conntrack openssl curl nsenter unshare sysctl pgrep python3 redis-server; do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  [ -x "$CNI_BIN/bridge" ] || missing+=("$CNI_BIN/bridge")
  [ ${#missing[@]} -eq 0 ] || die "missing: ${missing[*]}; run tests/node/apt.sh node"
}

check_addresses() {
  local net
  case $state/ in
    /run/* | /var/run/* | /var/log/containers/*) die "SLUICE_NODE_DIR cannot be $state: a node mounts over it" ;;
  esac
  if [ -d "$state" ] && [ -n "$(ls -A "$state")" ]; then die "SLUICE_NODE_DIR ($state) is not empty and not a node's state directory"; fi
  for net in "$NODE_NET.0/24" "$POD_NET.0.0/16" "$SERVICE_NET"; do
    if [ -n "$(ip -4 route show root "$net")" ]; then
      die "the cluster needs the addresses $net, but the machine has the route: $(ip -4 route show root "$net" | head -n 1)"
    fi
  done
}

up() {
  local count=${1:-1} i node images
  [[ $count =~ ^[1-9]$ ]] || die "up takes a number of nodes from 1 to 9, not '$count'"
  [[ $PROXY_MODE =~ ^(nftables|iptables)$ ]] || die "SLUICE_NODE_PROXY is nftables or iptables, not '$PROXY_MODE'"
  require_root up
  refuse_second
  check_programs
  bin=$("$here/assets.sh" node) # may take minutes, so not under the lock
  images=$("$here/images.sh")

  lock
  refuse_second
  if [ -e "$state/.sluice-node" ] || [ -n "$(bridge_owner)" ]; then
    log "removing the remains of an interrupted run"
    remove_all
  fi
  check_addresses

  # On most machines these are loaded already or built into the kernel.
  modprobe -qa br_netfilter overlay nf_tables 2>/dev/null || true
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'log "up did not finish: removing what it created"; remove_all; unlock' EXIT
  mkdir -p "$state"
  touch "$state/.sluice-node"
  echo "$bin" >"$state/bin"
  sysctl "${GLOBAL_SYSCTLS[@]}" >"$state/sysctls"
  make_mount_points

  ip link add "$BRIDGE" type bridge
  ip link set "$BRIDGE" alias "$state"
  ip address add "$HOST_IP/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  ip route replace "$SERVICE_NET" via "$CONTROL_PLANE_IP"
  make_pki
  for ((i = 1; i <= count; i++)); do
    start_namespaces "node$i"
    start_network "node$i" "$count"
    configure_node "node$i"
    daemon "node$i" containerd containerd -c "$state/node$i/containerd.toml"
  done
  start_apiserver
  for node in $(nodes); do
    wait_for 60 "$node: containerd is up" "$state/$node/containerd.log" in_node "$node" ctr version
  done
  load_everywhere "$images"/*.tar
  wait_for 180 "API server is ready" "$state/node1/kube-apiserver.log" apiserver_ready
  start_controllers
  for node in $(nodes); do start_kubelet "$node"; done
  for node in $(nodes); do
    wait_for 180 "$node is ready" "$state/$node/kubelet.log" node_ready "$node"
  done
  wait_for 120 "namespaces have service accounts" "$state/node1/kube-controller-manager.log" has_service_account default
  wait_for 120 "DNS is applied" "$state/node1/kube-apiserver.log" kubectl apply -f "$here/coredns.yaml"
  wait_for 180 "DNS is ready" "$state/node1/kubelet.log" kubectl -n kube-system rollout status deployment/coredns --timeout=10s

  # Under sudo, the user who called sudo owns the kubeconfig.
  if [ -n "${SUDO_UID:-}" ]; then chown "$SUDO_UID:${SUDO_GID:-0}" "$state/admin.kubeconfig"; fi
  touch "$state/ready"
  trap - EXIT INT TERM
  unlock
  print_env
}

# Removes the state directory last, so that an interrupted removal can run again.
remove_all() {
  end_processes
  if ! owned_by_other; then remove_from_machine; fi
  if [ -e "$state/.sluice-node" ]; then rm -rf --one-file-system "$state"; fi
}

down() {
  require_root down
  lock
  remove_all
  if owned_by_other; then log "the cluster of $(bridge_owner) is left alone"; fi
  unlock
}

print_env() {
  echo "export KUBECONFIG=$state/admin.kubeconfig"
  echo "export PATH=$(cat "$state/bin"):\$PATH"
  echo "export SLUICE_NODE_HOST=$HOST_IP"
}

status() {
  require_running
  bin=$(cat "$state/bin")
  kubectl get nodes -o wide
  kubectl get pods -A -o wide
  local node namespace process
  for node in $(nodes); do
    namespace=$(readlink "/proc/$(node_pid "$node")/ns/pid") || continue # only root may read it
    for process in /proc/[0-9]*; do
      if [ "$(readlink "$process/ns/pid" 2>/dev/null || true)" = "$namespace" ]; then
        awk -v node="$node" '/^VmRSS:/ { print node, $2 }' "$process/status" 2>/dev/null || true
      fi
    done
  done | awk '{ kib[$1] += $2 } END { for (node in kib) printf "%s: %d MiB resident, pods not counted\n", node, kib[node] / 1024 }' | sort
}

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2; }

main() {
  local tars
  case "${1:-}" in
    up) [ $# -le 2 ] || usage; up "${@:2}" ;;
    down) [ $# -eq 1 ] || usage; down ;;
    load)
      [ $# -ge 2 ] || usage
      require_root load
      require_running
      mapfile -t tars < <(realpath -e "${@:2}")
      [ ${#tars[@]} -eq $(($# - 1)) ] || exit 1
      load_everywhere "${tars[@]}"
      ;;
    enter)
      [ $# -ge 3 ] || usage
      require_root enter
      require_running
      require_node "$2"
      in_node "${@:2}"
      ;;
    kill)
      [ $# -eq 2 ] || usage
      require_root kill
      require_running
      require_node "$2"
      kill_node "$2"
      ;;
    env) require_running; print_env ;;
    status) status ;;
    *) usage ;;
  esac
}

main "$@"
