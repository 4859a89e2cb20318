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
dpkg -i /packages/newer/sealane-lab_*.deb >/dev/null 2>&1 || fail "the lab's package"

# Emulation of a loaded machine may stand still for longer than the unit's watchdog allows.
mkdir -p /etc/systemd/system/sealane.service.d
printf '[Service]\nWatchdogSec=20min\n' >/etc/systemd/system/sealane.service.d/emulation.conf

step "installation starts the service"
dpkg -i /packages/sealane_*.deb >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
systemctl is-active --quiet sealane.service || fail "the service does not run"
systemctl is-enabled --quiet sealane.service || fail "the service is not enabled"
until_true page
first=$(installed)
[ "$(ps -o user= -p "$(main_process)")" = sealane ] || fail "the process's user is $(ps -o user= -p "$(main_process)")"
grep -q '^NoNewPrivs:.*1' "/proc/$(main_process)/status" || fail "new privileges are possible"

step "upgrade under load: no request fails, another process serves"
before=$(main_process)
start_load
dpkg -i /packages/newer/sealane_*.deb >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
end_load "upgrade"
until_true another_main_process "$before"
[ "$(installed)" != "$first" ] || fail "the version is the same"
page || fail "no page after the upgrade"

step "downgrade under load"
before=$(main_process)
start_load
dpkg -i /packages/sealane_*.deb >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
end_load "downgrade"
until_true another_main_process "$before"
page || fail "no page after the downgrade"

step "an upgrade with a broken configuration: the old process serves on, and the output says why"
before=$(main_process)
cp -p /etc/sealane/sealane.toml /tmp/kept.toml
echo 'no_such_setting = 1' >>/etc/sealane/sealane.toml
dpkg -i /packages/newer/sealane_*.deb >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
grep -q "no_such_setting" /tmp/dpkg || fail "the output does not name the mistake: $(cat /tmp/dpkg)"
grep -q "the old version keeps serving" /tmp/dpkg || fail "the output does not say what serves: $(cat /tmp/dpkg)"
[ "$(main_process)" = "$before" ] || fail "another process serves"
page || fail "no page with a broken configuration"
if systemctl reload sealane.service 2>/dev/null; then fail "a reload with a broken configuration succeeded"; fi
page || fail "no page after the refused reload"
cp -p /tmp/kept.toml /etc/sealane/sealane.toml
sealane upgrade >/dev/null || fail "sealane upgrade"
until_true another_main_process "$before"

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
dpkg -i /packages/newer/sealane-openvpn_*.deb >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
# This machine has no udev, which makes the device accessible when the module is loaded.
modprobe tun
chmod 666 /dev/net/tun
sealane tunnel init vpn.example.com:1194 --folder /etc/sealane/vpn >/dev/null || fail "sealane tunnel init"
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
rm /etc/systemd/system/sealane.service.d/tunnel.conf
systemctl daemon-reload
systemctl restart sealane.service || fail "the service without the tunnel"

step "removal stops the service, purge leaves nothing"
dpkg -r sealane-openvpn sealane >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
if page; then fail "something still serves"; fi
if systemctl is-active --quiet sealane.service; then fail "the service runs"; fi
dpkg -P sealane sealane-openvpn >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
[ ! -e /var/lib/sealane ] || fail "purge left /var/lib/sealane"

echo "packages: passed"
