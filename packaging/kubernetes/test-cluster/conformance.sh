#!/bin/sh
# Runs the conformance suite of the Gateway API against this controller and gateway. Arguments: the folder of the programs (etcd,
# kube-apiserver, kube-controller-manager, kubelet, echo-basic, coredns, conformance.test), `sealane`, `sealane-kube`, an empty folder for
# data, the folder with the definitions of the Gateway API, and options of the suite.
#
# It needs root, and namespaces of its own: `unshare --net --mount --pid --fork --mount-proc --kill-child`.
set -eu
programs=$1
sealane=$2
controller=$3
data=$4
definitions=$5
shift 5
here=$(dirname "$(readlink -f "$0")")
version=$("$sealane" --version | cut -d' ' -f2)
ip link set lo up
# The API server wants an address that is not a loopback address.
ip link add name machine type veth peer name machine1
ip link set machine1 up
ip addr add 10.243.0.1/24 dev machine
ip link set machine up
ip route add default dev machine
mount -t tmpfs none /run
mkdir -p "$data/gateway/run" "$data/pods"

"$here/start.sh" "$programs" "$data/cluster" 2379 &
export KUBECONFIG="$data/cluster/kubeconfig"
wait_for() {
	tries=0
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ "$tries" -lt 300 ] || { echo "gave up waiting: $*" >&2; exit 1; }
		sleep 0.2
	done
}
wait_for test -s "$KUBECONFIG"
wait_for kubectl get --raw /readyz
# Those that the suite needs; the others would find that the node has no kubelet.
controllers=deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,serviceaccount-controller
controllers=$controllers,garbage-collector-controller,root-ca-certificate-publisher-controller
"$programs/kube-controller-manager" --kubeconfig "$KUBECONFIG" --leader-elect=false --bind-address 127.0.0.1 \
	--service-account-private-key-file "$data/cluster/accounts.key" --root-ca-file "$data/cluster/pki/apiserver.crt" \
	--controllers "$controllers" >"$data/controllers.log" 2>&1 &
kubectl apply --server-side -f "$definitions" >/dev/null
kubectl create namespace sealane >/dev/null
"$programs/kubelet" --kubeconfig "$KUBECONFIG" --program "$programs/echo-basic" --coredns "$programs/coredns" \
	--folder "$data/pods" >"$data/kubelet.log" 2>&1 &

cat >"$data/gateway/base.toml" <<CONFIG
drain_timeout = "5s"

[admin]
socket = "$data/gateway/admin.sock"

[[listener]]
address = ":8081"

[[host]]
names = ["*"]
listeners = [":8081"]
respond = { status = 200, body = "ok\n" }
CONFIG
"$controller" --base "$data/gateway/base.toml" --config "$data/gateway/run/sealane.toml" --admin "$data/gateway/admin.sock" \
	--namespace sealane --pod test >"$data/controller.log" 2>&1 &
wait_for test -s "$data/gateway/run/sealane.toml"
"$sealane" serve -c "$data/gateway/run/sealane.toml" >"$data/gateway.log" 2>&1 &
kubectl apply -f - >/dev/null <<CLASS
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: { name: sealane }
spec: { controllerName: sealane.github.io/gateway }
CLASS
kubectl wait --for=condition=Accepted gatewayclass/sealane --timeout=60s >/dev/null
cd "$data"
"$programs/conformance.test" -test.v -test.timeout 60m -test.run "^TestConformance\$" --gateway-class sealane \
	--organization sealane --project sealane --url https://github.com/sealane/sealane --version "$version" --contact @sealane \
	--report-output "$data/report.yaml" "$@"
