# shellcheck shell=bash
# shellcheck disable=SC2154 # node.sh, which sources this file, defines the constants
# The cluster's CA, and the certificates and kubeconfigs of its components.

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

certificate() { # certificate NAME SUBJECT [SAN]: signed by the cluster's CA
  local san=''
  [ -z "${3:-}" ] || san="subjectAltName=$3"
  new_key "$pki/$1.key"
  openssl req -new -key "$pki/$1.key" -subj "$2" |
    openssl x509 -req -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 365 -out "$pki/$1.crt" -extfile <(
      printf '%s\n' 'basicConstraints=CA:FALSE' 'keyUsage=digitalSignature' 'extendedKeyUsage=serverAuth,clientAuth' "$san"
    ) 2>"$pki/openssl.log"
}

kubeconfig() { # kubeconfig NAME: write a kubeconfig with the certificate of that name
  cat >"$state/$1.kubeconfig" <<JSON
{"apiVersion": "v1", "kind": "Config", "current-context": "sluice-node",
 "clusters": [{"name": "sluice-node", "cluster": {"server": "https://$CONTROL_PLANE_IP:6443",
   "certificate-authority-data": "$(base64 -w0 "$pki/ca.crt")"}}],
 "users": [{"name": "$1", "user": {"client-certificate-data": "$(base64 -w0 "$pki/$1.crt")",
   "client-key-data": "$(base64 -w0 "$pki/$1.key")"}}],
 "contexts": [{"name": "sluice-node", "context": {"cluster": "sluice-node", "user": "$1"}}]}
JSON
  chmod 600 "$state/$1.kubeconfig"
}

make_pki() {
  mkdir -m 700 "$pki"
  new_key "$pki/ca.key"
  openssl req -x509 -key "$pki/ca.key" -out "$pki/ca.crt" -days 365 -subj /CN=sluice-node-ca \
    -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
  new_key "$pki/sa.key"
  openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>"$pki/openssl.log"
  certificate apiserver /CN=kube-apiserver "IP:$CONTROL_PLANE_IP,IP:127.0.0.1,IP:$KUBERNETES_IP,DNS:localhost,DNS:kubernetes,\
DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
  certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  certificate front-proxy /CN=front-proxy-client
  local name
  for name in kube-controller-manager kube-scheduler kube-proxy; do
    certificate $name "/CN=system:$name"
    kubeconfig $name
  done
  certificate admin /O=system:masters/CN=admin
  kubeconfig admin
}
