# shellcheck shell=bash
# shellcheck disable=SC2154 # node.sh, which sources this file, defines the constants
# The control plane, which runs in node1: etcd, API server, controller manager, scheduler.

start_apiserver() {
  # Without fsync: the cluster ends with the machine anyway.
  daemon node1 etcd "$bin/etcd" --unsafe-no-fsync --data-dir "$state/node1/etcd" \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
  # Otherwise the API server's first connection fails, and it backs off for a second.
  wait_for 60 "etcd is healthy" "$state/node1/etcd.log" in_node node1 curl -sf http://127.0.0.1:2379/health
  daemon node1 kube-apiserver "$bin/kube-apiserver" \
    --etcd-servers=http://127.0.0.1:2379 --advertise-address="$CONTROL_PLANE_IP" --secure-port=6443 \
    --service-cluster-ip-range="$SERVICE_NET" --allow-privileged=true \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --cert-dir="$state/node1/apiserver" --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key" \
    --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key"
}

start_controllers() {
  # With the default rate a new namespace would wait seconds for its ServiceAccount.
  daemon node1 kube-controller-manager "$bin/kube-controller-manager" \
    --kubeconfig="$state/kube-controller-manager.kubeconfig" --leader-elect=false --bind-address=127.0.0.1 \
    --use-service-account-credentials --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --kube-api-qps=500 --kube-api-burst=1000
  daemon node1 kube-scheduler "$bin/kube-scheduler" --leader-elect=false --bind-address=127.0.0.1 \
    --kubeconfig="$state/kube-scheduler.kubeconfig" --authentication-kubeconfig="$state/kube-scheduler.kubeconfig" \
    --authorization-kubeconfig="$state/kube-scheduler.kubeconfig"
}
