#!/bin/sh
# Three gateways that share a Valkey or Redis server, on one machine: each program runs in its own network namespace.
#
#   sudo sh fleet.sh start      starts the server, the gateways and an application
#   sudo sh fleet.sh stop       stops them, and removes the namespaces and the folder
#
# To see how the gateways work without the server:
#
#   sudo sh fleet.sh kill-store     kills the server
#   sudo sh fleet.sh start-store    starts it again, without data
#   sudo sh fleet.sh cut-store      disconnects the server from the network
#   sudo sh fleet.sh join-store     connects it again
#   sudo sh fleet.sh cut-gateway 1  disconnects only this gateway from the server; clients and the application still reach it
#   sudo sh fleet.sh join-gateway 1 connects it again
#
#   10.97.26.1               this machine, with the application on port 3000
#   10.97.26.2               the Valkey or Redis server, over TLS
#   10.97.26.11, .12, .13    the gateways, on port 443
#
# Needs root, ip (iproute2), openssl, valkey-server or redis-server, and sealane. Variables: SEALANE (the program), FLEET (the folder
# for certificates and logs), NAME (the namespaces' names begin with it; at most 8 characters).
set -eu

NAME=${NAME:-fleet}
FLEET=${FLEET:-/run/sealane-$NAME}
SEALANE=${SEALANE:-sealane}
NET=10.97.26
STORE=$NAME-store
here=$(cd "$(dirname "$0")" && pwd)

fail() {
    echo "fleet.sh: $1" >&2
    exit 1
}

# A namespace with an address on the bridge: NAMESPACE CABLE ADDRESS
namespace() {
    ip netns add "$1"
    ip link add "$NAME-$2" type veth peer name eth0 netns "$1"
    ip link set "$NAME-$2" master "$NAME-br" up
    ip -n "$1" address add "$NET.$3/24" dev eth0
    ip -n "$1" link set lo up
    ip -n "$1" link set eth0 up
}

# Starts a program in the background: LOG COMMAND...
background() {
    log=$1
    shift
    setsid "$@" >"$FLEET/$log.log" 2>&1 </dev/null &
    echo $! >"$FLEET/$log.pid"
}

# A certificate that the fleet's own CA has signed: FILE SUBJECT
certificate() {
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1-key.pem" -out "$1.csr" -subj "/CN=$1" 2>/dev/null
    printf 'subjectAltName=%s\n' "$2" >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.pem" 2>/dev/null
}

start_store() {
    server=$(command -v valkey-server || command -v redis-server) || fail "neither valkey-server nor redis-server is installed"
    background store ip netns exec "$STORE" "$server" "$FLEET/store.conf"
}

start() {
    [ "$(id -u)" = 0 ] || fail "this needs root, for network namespaces"
    for program in ip openssl setsid "$SEALANE"; do
        command -v "$program" >/dev/null || fail "$program is not installed"
    done
    SEALANE=$(realpath "$(command -v "$SEALANE")")
    [ ! -e "$FLEET" ] || fail "$FLEET exists: run 'fleet.sh stop' first"
    umask 077
    mkdir -p "$FLEET"
    trap stop EXIT
    cd "$FLEET"

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca-key.pem -out ca.pem -days 30 -subj "/CN=fleet" \
        2>/dev/null
    certificate store "IP:$NET.2"
    certificate site "DNS:localhost,IP:$NET.11,IP:$NET.12,IP:$NET.13"
    openssl rand -base64 32 >store.secret
    openssl rand -hex 24 >store.password
    cat >store.conf <<END
bind $NET.2
port 0
tls-port 6379
tls-cert-file $FLEET/store.pem
tls-key-file $FLEET/store-key.pem
tls-ca-cert-file $FLEET/ca.pem
tls-auth-clients no
dir $FLEET
save ""
maxmemory 64mb
maxmemory-policy volatile-ttl
user default reset
user sealane on >$(cat store.password) ~sealane:* +get +set +del +getdel +time +eval +info +auth
END
    cp "$here/sealane.toml" .

    ip link add "$NAME-br" type bridge
    ip address add "$NET.1/24" dev "$NAME-br"
    ip link set "$NAME-br" up
    namespace "$STORE" s 2
    for n in 1 2 3; do namespace "$NAME-$n" "$n" "1$n"; done

    start_store
    background app "$SEALANE" respond --plain --listen "$NET.1:3000" --body "It works."
    for n in 1 2 3; do background "$n" ip netns exec "$NAME-$n" "$SEALANE" serve -c sealane.toml; done
    for n in 1 2 3; do
        tries=0
        until ip netns exec "$NAME-$n" "$SEALANE" status --admin 127.0.0.1:9901 >/dev/null 2>&1; do
            tries=$((tries + 1))
            [ "$tries" -lt 100 ] || fail "gateway $n does not start: $(cat "$n.log")"
            sleep 0.2
        done
    done
    trap - EXIT
    echo "The gateways serve https://$NET.11/, https://$NET.12/ and https://$NET.13/ (certificates of $FLEET/ca.pem)."
}

stop() {
    for file in "$FLEET"/*.pid; do
        [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || true
    done
    # The gateways finish open requests first.
    for file in "$FLEET"/*.pid; do
        while [ -e "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null; do sleep 0.1; done
    done
    for namespace in "$STORE" "$NAME-1" "$NAME-2" "$NAME-3"; do
        ip netns delete "$namespace" 2>/dev/null || true
    done
    ip link delete "$NAME-br" 2>/dev/null || true
    rm -rf "$FLEET"
}

case "${1:-}" in
start) start ;;
stop) stop ;;
kill-store) kill -KILL "$(cat "$FLEET/store.pid")" ;;
start-store) start_store ;;
cut-store) ip link set "$NAME-s" down ;;
cut-gateway) ip -n "$NAME-${2:?the number of the gateway is missing}" route add blackhole "$NET.2" ;;
join-gateway) ip -n "$NAME-${2:?the number of the gateway is missing}" route delete blackhole "$NET.2" ;;
join-store) ip link set "$NAME-s" up ;;
*) fail "usage: fleet.sh start | stop | kill-store | start-store | cut-store | join-store | cut-gateway N | join-gateway N" ;;
esac
