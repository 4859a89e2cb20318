#!/bin/sh
# Starts etcd and a Kubernetes API server on this machine, for tests. Arguments: the folder of the programs, a folder for data, and the
# first of three ports. Ends with the API server. `kubeconfig` in the folder for data is an administrator's.
set -eu
programs=$1
data=$2
port=$3
mkdir -p "$data"
cd "$data"
openssl genrsa -out accounts.key 2048 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,admin,admin,system:masters" >tokens.csv
chmod 600 tokens.csv accounts.key
"$programs/etcd" --data-dir "$data/etcd" --log-level error --unsafe-no-fsync \
	--listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$((port + 1))" >etcd.log 2>&1 &
etcd=$!
trap 'kill "$etcd" 2>/dev/null || true' EXIT
cat >kubeconfig <<CONFIG
apiVersion: v1
kind: Config
clusters: [{ name: test, cluster: { server: "https://127.0.0.1:$((port + 2))", certificate-authority: "$data/pki/apiserver.crt" } }]
users: [{ name: admin, user: { token: "$token" } }]
contexts: [{ name: test, context: { cluster: test, user: admin } }]
current-context: test
CONFIG
chmod 600 kubeconfig
"$programs/kube-apiserver" --etcd-servers "http://127.0.0.1:$port" --secure-port "$((port + 2))" --bind-address 127.0.0.1 \
	--cert-dir "$data/pki" --token-auth-file tokens.csv --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
	--service-account-key-file accounts.key --service-account-signing-key-file accounts.key \
	--service-account-issuer https://kubernetes.default.svc --disable-admission-plugins ServiceAccount >apiserver.log 2>&1
