#!/bin/sh
# Runs in a virtual machine that systemd has booted from a fresh root of a Debian suite: `cargo xtask package --check`.
# /packages holds the packages, and in /packages/newer those of a newer version.
set -eu

fail() {
	systemctl --no-pager status sealane.service 2>&1 | tail -20 || true
	journalctl --no-pager -u sealane.service 2>&1 | tail -20 || true
	echo "failed: $*"
	exit 1
}
step() { echo "  $*"; }
page() { curl -fs --max-time 5 http://127.0.0.1/ | grep -q "Sealane works"; }
main_process() { systemctl show --property MainPID --value sealane.service; }
installed() { dpkg-query --show --showformat '${Version}' sealane; }
# As an operator installs a package file. Everything that the packages need is there already, so apt needs no network.
install() {
	apt-get install -y -q --allow-downgrades -o Dpkg::Use-Pty=0 "$@" >/tmp/apt 2>&1 || fail "apt-get install: $(cat /tmp/apt)"
}
# Waits for a condition; commands and signals take effect a moment later.
until_true() {
	tries=200
	until "$@"; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || fail "never true: $*"
		sleep 0.1
	done
}
another_main_process() { [ "$(main_process)" != "$1" ] && [ "$(main_process)" != 0 ]; }
# Load in the background until `end_load`: one run of the generator after another. Emulation is slow, so the figures are void (exit
# code 3), but no request may fail.
start_load() {
	rm -f /tmp/load-ends /tmp/load-failed
	while [ ! -e /tmp/load-ends ]; do
		sealane-lab load --rate 20 --connections 2 --warmup 0s --duration 3s --fail-if 'errors>0%' http://127.0.0.1/ >/tmp/load 2>&1 ||
			[ $? = 3 ] || cp /tmp/load /tmp/load-failed
		grep -q ', 0 failed, 0 never started' /tmp/load || cp /tmp/load /tmp/load-failed
	done &
	load=$!
	until_true [ -e /tmp/load ]
}
end_load() {
	touch /tmp/load-ends
	wait $load
	[ ! -e /tmp/load-failed ] || fail "$1: requests failed: $(cat /tmp/load-failed)"
}

export DEBIAN_FRONTEND=noninteractive
ip link set lo up
depmod -a
install /packages/newer/sealane-lab_*.deb

# Emulation of a loaded machine may stand still for longer than the unit's watchdog allows.
mkdir -p /etc/systemd/system/sealane.service.d
printf '[Service]\nWatchdogSec=20min\n' >/etc/systemd/system/sealane.service.d/emulation.conf

step "installation starts the service"
install /packages/sealane_*.deb
systemctl is-active --quiet sealane.service || fail "the service does not run"
systemctl is-enabled --quiet sealane.service || fail "the service is not enabled"
until_true page
first=$(installed)
[ "$(ps -o user= -p "$(main_process)")" = sealane ] || fail "the process's user is $(ps -o user= -p "$(main_process)")"
grep -q '^NoNewPrivs:.*1' "/proc/$(main_process)/status" || fail "new privileges are possible"

step "upgrade under load: no request fails, another process serves"
before=$(main_process)
start_load
install /packages/newer/sealane_*.deb
end_load "upgrade"
until_true another_main_process "$before"
[ "$(installed)" != "$first" ] || fail "the version is the same"
page || fail "no page after the upgrade"

step "downgrade under load"
before=$(main_process)
start_load
install /packages/sealane_*.deb
end_load "downgrade"
until_true another_main_process "$before"
page || fail "no page after the downgrade"

step "an upgrade with a broken configuration: the old process serves on, and the output says why"
before=$(main_process)
cp -p /etc/sealane/sealane.toml /tmp/kept.toml
echo 'no_such_setting = 1' >>/etc/sealane/sealane.toml
install /packages/newer/sealane_*.deb
grep -q "no_such_setting" /tmp/apt || fail "the output does not name the mistake: $(cat /tmp/apt)"
grep -q "the old version keeps serving" /tmp/apt || fail "the output does not say what serves: $(cat /tmp/apt)"
[ "$(main_process)" = "$before" ] || fail "another process serves"
page || fail "no page with a broken configuration"
if systemctl reload sealane.service 2>/dev/null; then fail "a reload with a broken configuration succeeded"; fi
page || fail "no page after the refused reload"
cp -p /tmp/kept.toml /etc/sealane/sealane.toml
sealane upgrade >/dev/null || fail "sealane upgrade"
until_true another_main_process "$before"

step "logrotate: lines go on in a new file"
before=$(main_process)
log=/var/log/sealane/access.log
asked() { curl -fs --max-time 5 "http://127.0.0.1/$1" >/dev/null; }
# The process opens the new file some time after the signal, so the request is repeated.
logged_anew() { asked after-rotation && grep -q after-rotation "$log" 2>/dev/null; }
asked before-rotation || fail "no page before the rotation"
until_true grep -q before-rotation "$log"
logrotate --force /etc/logrotate.d/sealane >/tmp/logrotate 2>&1 || fail "logrotate: $(cat /tmp/logrotate)"
grep -q before-rotation "$log.1" || fail "logrotate moved nothing: $(ls -l /var/log/sealane)"
until_true logged_anew
if grep -q before-rotation "$log"; then fail "the log was copied, not moved"; fi
[ "$(stat -c %U "$log")" = sealane ] || fail "the owner of the new log is $(stat -c %U "$log")"
[ "$(main_process)" = "$before" ] || fail "a rotation replaced the process"

step "reload, restart, and a process that is killed"
systemctl reload sealane.service || fail "reload"
systemctl restart sealane.service || fail "restart"
until_true page
before=$(main_process)
kill -9 "$before"
until_true another_main_process "$before"
until_true page

step "a stop waits for open requests as long as drain_timeout, beyond TimeoutStopSec"
# A server that answers late: after TimeoutStopSec, and before drain_timeout (30 s).
cat >/etc/systemd/system/late.socket <<'UNIT'
[Socket]
ListenStream=127.0.0.1:9000
Accept=yes
UNIT
cat >/tmp/late.sh <<'SCRIPT'
end=$(printf '\r')
while read -r line && [ "$line" != "$end" ]; do :; done
sleep 12
printf 'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate'
SCRIPT
cat >/etc/systemd/system/late@.service <<'UNIT'
[Service]
ExecStart=/bin/sh /tmp/late.sh
StandardInput=socket
StandardOutput=socket
UNIT
printf '[Service]\nTimeoutStopSec=3\n' >/etc/systemd/system/sealane.service.d/stop.conf
cat >>/etc/sealane/sealane.toml <<'CONFIGURATION'
[[host]]
names = ["late.example.com"]
to = ["http://127.0.0.1:9000"]
CONFIGURATION
systemctl daemon-reload
systemctl start late.socket
systemctl reload sealane.service || fail "reload"
curl -s --max-time 60 -H 'Host: late.example.com' http://127.0.0.1/ >/tmp/late &
late=$!
until_true systemctl is-active --quiet 'late@*.service'
systemctl stop sealane.service
wait $late || fail "the open request ended with the code $?"
grep -qx late /tmp/late || fail "the open request got: $(cat /tmp/late)"
[ "$(systemctl show --property Result --value sealane.service)" = success ] || fail "the stop did not succeed"
rm /etc/systemd/system/sealane.service.d/stop.conf
cp -p /tmp/kept.toml /etc/sealane/sealane.toml
systemctl daemon-reload
systemctl start sealane.service || fail "start"

step "steering of QUIC, with the drop-in in the documentation"
steering() {
	printf '[Service]\nExecStartPost=/bin/sh -c "sealane self check >/run/sealane/self"\n' \
		>/etc/systemd/system/sealane.service.d/self.conf
	systemctl daemon-reload
	systemctl restart sealane.service || fail "restart"
	grep -i 'QUIC steering' /run/sealane/self
}
steering | grep -q 'not permitted' || fail "without the drop-in: $(cat /run/sealane/self)"
cp /usr/share/doc/sealane/steering.conf /etc/systemd/system/sealane.service.d/steering.conf
steering | grep -q 'the kernel delivers each datagram' || fail "with the drop-in: $(cat /run/sealane/self)"
rm /etc/systemd/system/sealane.service.d/steering.conf /etc/systemd/system/sealane.service.d/self.conf

step "a tunnel, with the rights of sealane-openvpn"
forwarding() { echo "$(cat /proc/sys/net/ipv4/ip_forward) $(cat /proc/sys/net/ipv6/conf/all/forwarding)"; }
[ "$(forwarding)" = "0 0" ] || fail "packets are forwarded without the package: $(forwarding)"
install /packages/newer/sealane-openvpn_*.deb
[ "$(forwarding)" = "1 1" ] || fail "packets are not forwarded: $(forwarding)"
# An administrator's file of the same name has precedence, also when the package is installed again.
printf 'net.ipv4.ip_forward = 0\n' >/etc/sysctl.d/60-sealane-openvpn.conf
install --reinstall /packages/newer/sealane-openvpn_*.deb
[ "$(forwarding)" = "0 1" ] || fail "the package does not respect /etc/sysctl.d: $(forwarding)"
rm /etc/sysctl.d/60-sealane-openvpn.conf
install --reinstall /packages/newer/sealane-openvpn_*.deb
[ "$(forwarding)" = "1 1" ] || fail "packets are not forwarded: $(forwarding)"
# This machine has no udev, which makes the device accessible when the module is loaded.
modprobe tun
chmod 666 /dev/net/tun
# The client is in a network namespace of its own, behind a pair of interfaces.
modprobe veth
ip netns add client
ip link add outside type veth peer name inside netns client
ip address add 192.0.2.1/24 dev outside
ip link set outside up
ip -n client address add 192.0.2.2/24 dev inside
ip -n client link set inside up
sealane tunnel init 192.0.2.1:1194 --folder /etc/sealane/vpn >/dev/null || fail "sealane tunnel init"
sealane tunnel client-config --folder /etc/sealane/vpn alice >/tmp/alice.ovpn || fail "sealane tunnel client-config"
# The unit lets the process write only to its own folders (docs/reference/tunnel.md).
sed -i -e 's|"admin.sock"|"/run/sealane/admin.sock"|' -e 's|"status.json"|"/run/sealane/tunnel.json"|' \
	-e 's|"tunnel.log"|"/var/log/sealane/tunnel.log"|' /etc/sealane/vpn/tunnel.toml
chgrp -R sealane /etc/sealane/vpn
chmod -R g+rX /etc/sealane/vpn
cat >/etc/systemd/system/sealane.service.d/tunnel.conf <<'UNIT'
[Service]
ExecStartPre=
ExecStart=
ExecStart=/usr/bin/sealane serve -c /etc/sealane/vpn/tunnel.toml
UNIT
systemctl daemon-reload
systemctl restart sealane.service || fail "the service with a tunnel"
ip -brief address show | grep -q '^sealane0' || fail "no interface: $(ip -brief address show)"
ip netns exec client sealane tunnel connect --dns off /tmp/alice.ovpn >/tmp/client 2>&1 &
client=$!
reached() { ip netns exec client ping -c 1 -W 5 10.8.0.1 >/dev/null 2>&1; }
connections() { grep -c 'connected to 192.0.2.1' /tmp/client; }
until_true reached
[ "$(connections)" = 1 ] || fail "the client: $(cat /tmp/client)"

# systemd tells a service about its descriptor store since version 254 (Debian 13).
manager=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
before=$(main_process)
if [ "$manager" -ge 254 ]; then
	step "the tunnel's clients stay connected through a restart (systemd $manager)"
	systemctl restart sealane.service || fail "restart with a tunnel"
	until_true reached
	journalctl --no-pager -u sealane.service | grep -q '1 clients taken over' || fail "no client was taken over: $(cat /tmp/client)"
	[ "$(connections)" = 1 ] || fail "the client connected again: $(cat /tmp/client)"
else
	step "the tunnel's clients connect again after a restart (systemd $manager has no store for them)"
	systemctl restart sealane.service || fail "restart with a tunnel"
	connected_again() { [ "$(connections)" = 2 ]; }
	until_true connected_again
	until_true reached
fi
[ "$(main_process)" != "$before" ] || fail "the restart replaced no process"
kill "$client"
wait "$client" || true
rm /etc/systemd/system/sealane.service.d/tunnel.conf
systemctl daemon-reload
systemctl restart sealane.service || fail "the service without the tunnel"

step "removal stops the service, purge leaves nothing"
apt-get remove -y -q -o Dpkg::Use-Pty=0 sealane-openvpn sealane >/tmp/apt 2>&1 || fail "apt-get remove: $(cat /tmp/apt)"
if page; then fail "something still serves"; fi
if systemctl is-active --quiet sealane.service; then fail "the service runs"; fi
apt-get purge -y -q -o Dpkg::Use-Pty=0 sealane sealane-openvpn >/tmp/apt 2>&1 || fail "apt-get purge: $(cat /tmp/apt)"
[ ! -e /var/lib/sealane ] || fail "purge left /var/lib/sealane"

echo "packages: passed"
