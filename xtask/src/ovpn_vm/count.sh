#!/bin/sh
# Counts the guest's instructions per packet, for the same stock client and the servers in turn. The clock of this machine advances by one
# nanosecond with each instruction (qemu's icount), and /proc/schedstat says for how many nanoseconds tasks have run.
#
# A line of what is counted: SUBJECT WORKLOAD ROUND PACKETS INSTRUCTIONS.

# `ip` and `ping` have their paths, because busybox would take its own.
ROUNDS=3
ECHOES=5000
# An IP packet of 1,400 bytes.
PAYLOAD=1372
# 1,400 bytes each, as far as TCP is concerned.
SEGMENTS=10000
BYTES=$((SEGMENTS * 1400))

fail() {
    echo "count: failed: $*"
    for log in /tmp/*.log; do echo "== $log"; tail -n 20 "$log"; done
    exit 1
}

busy() { awk '/^cpu0 / { print $8 }' /proc/schedstat; }

# SUBJECT WORKLOAD PACKETS COMMAND
measure() {
    for round in $(seq $ROUNDS); do
        before=$(busy)
        $4 > /tmp/workload.log 2>&1 || fail "$1 $2"
        after=$(busy)
        echo "count: $1 $2 $round $3 $((after - before))"
    done
}

pings() {
    /tools/ip netns exec c /tools/ping -q -f -c $ECHOES -s $PAYLOAD "$inside" > /tmp/ping.log 2>&1
    grep -q ' 0% packet loss' /tmp/ping.log
}

# A side of `nc` whose input ends says so to the other one, which then ends: those that only read have an input that does not end.
upload() {
    /tools/ip netns exec s nc -l -p 7000 <&3 2> /dev/null | wc -c > /tmp/got &
    reader=$!
    sleep 0.2
    head -c $BYTES /dev/zero | /tools/ip netns exec c nc "$inside" 7000 > /dev/null
    wait $reader
    [ "$(cat /tmp/got)" -eq $BYTES ]
}

download() {
    head -c $BYTES /dev/zero | /tools/ip netns exec s nc -l -p 7000 > /dev/null &
    writer=$!
    sleep 0.2
    /tools/ip netns exec c nc "$inside" 7000 <&3 | wc -c > /tmp/got
    wait $writer
    [ "$(cat /tmp/got)" -eq $BYTES ]
}

# SUBJECT
workloads() {
    measure "$1" echo $((2 * ECHOES)) pings
    measure "$1" upload $SEGMENTS upload
    measure "$1" download $SEGMENTS download
}

# FILE TEXT
wait_for() {
    for _ in $(seq 300); do
        grep -q "$2" "$1" 2> /dev/null && return
        sleep 0.2
    done
    fail "no \"$2\" in $1"
}

# SUBJECT TEXT SERVER...: the text says that the server serves.
with_server() {
    subject=$1 ready=$2
    shift 2
    /tools/ip netns exec s "$@" > /tmp/server.log 2>&1 &
    server=$!
    wait_for /tmp/server.log "$ready"
    /tools/ip netns exec c openvpn --config alice.ovpn --disable-dco --verb 3 > /tmp/client.log 2>&1 &
    client=$!
    wait_for /tmp/client.log "Initialization Sequence Completed"
    workloads "$subject"
    kill $client
    wait $client
    kill $server
    wait $server
}

cd /tmp || exit 1
mkfifo hold && exec 3<> hold || fail "no pipe"
/tools/ip netns add s && /tools/ip netns add c || fail "no network namespaces"
/tools/ip link add v netns s type veth peer name v netns c || fail "no veth"
/tools/ip -n s addr add 10.99.0.1/24 dev v
/tools/ip -n c addr add 10.99.0.2/24 dev v
for end in s c; do
    /tools/ip -n $end link set lo up
    /tools/ip -n $end link set v up
done

echo "about: Linux $(uname -r)"
echo "about: $(openvpn --version | head -n 1)"
command -v openvpn-dco > /dev/null && echo "about: $(openvpn-dco --version | head -n 1)"
echo "about: $(sealane --version | head -n 1)"

# What reading the clock costs, and the workloads without a tunnel.
measure nothing nothing 1 true
inside=10.99.0.1
workloads veth


sealane tunnel init 10.99.0.1:1194 --folder vpn --network 10.88.0.0/24 > /tmp/init.log 2>&1 || fail "sealane tunnel init"
sealane tunnel client-config --folder vpn alice > alice.ovpn 2> /tmp/init.log || fail "sealane tunnel client-config"
cat > server.conf << END
dev tun
topology subnet
server 10.88.0.0 255.255.255.0
ca vpn/ca.crt
cert vpn/server.crt
key vpn/server.key
dh none
tls-crypt-v2 vpn/tls-crypt-v2.key
keepalive 10 60
END
inside=10.88.0.1
ready="Initialization Sequence Completed"
if command -v openvpn-dco > /dev/null; then
    with_server openvpn-2.7 "$ready" openvpn-dco --config server.conf --disable-dco --verb 3
    with_server openvpn-2.7-dco "$ready" openvpn-dco --config server.conf --verb 3
else
    echo "count: there is no OpenVPN 2.7 here"
fi
with_server openvpn-2.6 "$ready" openvpn --config server.conf --disable-dco --verb 3
for plane in user kernel; do
    sed "s/^listen = .*/&\nlanes = 1\ndata_plane = \"$plane\"/" vpn/tunnel.toml > vpn/$plane.toml
    with_server sealane-$plane "OpenVPN clients at" sealane serve -c vpn/$plane.toml
done
