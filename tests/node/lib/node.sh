# shellcheck shell=bash
# shellcheck disable=SC2154 # node.sh, which sources this file, defines the constants
# A node: its namespaces, network, configuration, and the daemons that run in it.

# Script of a node's first process. It mounts the node's directories, then reaps orphaned processes.
# shellcheck disable=SC2016 # expanded by the inner shell
readonly NODE_INIT='
  set -e
  dir=$1
  mount --make-rshared / # in this namespace: the kubelet and containerd propagate mounts to pods
  mount --bind "$dir/kubelet" /var/lib/kubelet
  mount --bind "$dir/containerd" /var/lib/containerd
  mount --bind "$dir/cni" /var/lib/cni
  mount --bind "$dir/cni-conf" /etc/cni/net.d
  mount --bind "$dir/pod-logs" /var/log/pods
  mount -t tmpfs tmpfs /var/log/containers
  mount -t tmpfs tmpfs /run # sockets, network namespaces, lock of iptables
  mkdir /run/lock
  hostname "$2"
  echo up
  while :; do sleep 3600 & wait $!; done'

node_pid() { cat "$state/$1/init.pid"; }

# Without --chdir the working directory would belong to the other mount namespace.
in_node() { # in_node NODE COMMAND...
  unlocked env --chdir=/ nsenter -t "$(node_pid "$1")" -m -n -p -u -- "${@:2}"
}

daemon() { # daemon NODE NAME COMMAND...: in the background, logging to the node's NAME.log
  local node=$1 name=$2
  shift 2
  (exec env --chdir=/ SLUICE_NODE_MARK="$state" setsid nsenter -t "$(node_pid "$node")" -m -n -p -u -- "$@") \
    >>"$state/$node/$name.log" 2>&1 </dev/null 9>&- &
  disown # no message from bash when it ends
}

start_namespaces() { # start_namespaces NODE
  local node=$1 dir=$state/$1
  mkdir -p "$dir"/{kubelet,containerd,cni,cni-conf,pod-logs}
  mkdir -m 700 "$dir/etcd"
  (exec env SLUICE_NODE_MARK="$state" setsid unshare --mount --net --pid --uts --fork --kill-child --mount-proc \
    bash -c "$NODE_INIT" node "$dir" "$node") >"$dir/init.log" 2>&1 </dev/null 9>&- &
  local unshare=$!
  disown
  wait_for 30 "$node has its namespaces" "$dir/init.log" grep -qx up "$dir/init.log"
  pgrep -P "$unshare" >"$dir/init.pid"
}

start_network() { # start_network NODE COUNT
  local node=$1 count=$2 i=${1#node} pid other
  pid=$(node_pid "$node")
  ip link add "sluice-n$i" type veth peer name eth0 netns "$pid"
  ip link set "sluice-n$i" master "$BRIDGE" up
  ip route replace "$POD_NET.$i.0/24" via "$(node_ip "$node")"
  {
    echo "link set lo up"
    echo "address add $(node_ip "$node")/24 dev eth0"
    echo "link set eth0 up"
    echo "route add $SERVICE_NET dev eth0" # the node's own processes need a route to a ClusterIP before kube-proxy's rules rewrite it
    for ((other = 1; other <= count; other++)); do
      if ((other != i)); then echo "route add $POD_NET.$other.0/24 via $(node_ip "node$other")"; fi
    done
  } | nsenter -t "$pid" -n ip -batch -
  nsenter -t "$pid" -n sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
  # Packets from a pod to a Service and back to a pod of the same bridge are rewritten only if bridged packets pass
  # netfilter.
  nsenter -t "$pid" -n sysctl -qw net.bridge.bridge-nf-call-iptables=1
}

configure_node() { # configure_node NODE
  local node=$1 dir=$state/$1 ip snapshotter=overlayfs
  ip=$(node_ip "$node")
  make_cgroup "sluice-$node"
  certificate "kubelet-$node" "/O=system:nodes/CN=system:node:$node" "IP:$ip,DNS:$node"
  kubeconfig "kubelet-$node"
  echo "nameserver $DNS_IP" >"$dir/resolv.conf"
  # Inside a container the directory may be on overlayfs already, and overlayfs cannot be stacked on itself.
  if [ "$(stat -fc %T "$dir")" = overlayfs ]; then snapshotter=native; fi

  cat >"$dir/cni-conf/10-sluice.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "sluice", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "$POD_NET.${node#node}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON

  # restrict_oom_score_adj and oom_score: lowering a score needs CAP_SYS_RESOURCE, which build machines often lack.
  cat >"$dir/containerd.toml" <<TOML
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "$CONTAINERD_SOCKET"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "sluice.local/pause:test"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML

  # Eviction thresholds are low because the machine's disk is shared. Images are never collected because there is no
  # registry to pull them from again.
  cat >"$dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet-$node.crt
tlsPrivateKeyFile: $pki/kubelet-$node.key
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
cgroupDriver: cgroupfs
cgroupRoot: /sluice-$node
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: $dir/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
configMapAndSecretChangeDetectionStrategy: Watch
syncFrequency: 10s
volumePluginDir: /var/lib/kubelet/volumeplugins
oomScoreAdj: 0
YAML

  # conntrack 0: the size of the table cannot be changed inside a network namespace.
  cat >"$dir/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $PROXY_MODE
clientConnection: {kubeconfig: $state/kube-proxy.kubeconfig}
clusterCIDR: $POD_NET.0.0/16
hostnameOverride: $node
conntrack: {maxPerCore: 0, min: 0}
nftables: {syncPeriod: 30s, minSyncPeriod: 100ms}
iptables: {syncPeriod: 30s, minSyncPeriod: 100ms}
oomScoreAdj: 0
YAML
}

start_kubelet() { # start_kubelet NODE
  daemon "$1" kubelet "$bin/kubelet" --config="$state/$1/kubelet.yaml" \
    --kubeconfig="$state/kubelet-$1.kubeconfig" --hostname-override="$1" --node-ip="$(node_ip "$1")"
  daemon "$1" kube-proxy "$bin/kube-proxy" --config="$state/$1/kube-proxy.yaml"
}
