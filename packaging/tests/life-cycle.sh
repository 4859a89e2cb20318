#!/bin/sh
# Runs in a fresh root of a Debian suite, without systemd running, in namespaces of its own: `cargo xtask package --check`.
# /packages holds the packages, and in /packages/newer those of a newer version.
set -eu

fail() {
	echo "failed: $*" >&2
	exit 1
}
step() { echo "  $*"; }
# The exposure that systemd computes for a unit, in tenths.
exposure() {
	systemd-analyze security --offline=true /usr/lib/systemd/system/sealane.service 2>/dev/null |
		sed -n 's/.*exposure level for sealane.service: \([0-9]*\)\.\([0-9]\).*/\1\2/p'
}

step "installation"
dpkg -i /packages/sealane_*.deb >/dev/null
systemctl is-enabled --quiet sealane.service || fail "the service is not enabled"
[ "$(stat -c '%U:%G %a' /etc/sealane/sealane.toml)" = "root:sealane 640" ] || fail "rights of sealane.toml"
version=$(sealane --version --json | tr -d ' \n')
echo "$version" | grep -Eq '"commit":"[0-9a-f]{40}(-modified)?"' || fail "the version names no commit: $version"
echo "$version" | grep -q '"features":\["full"\]' || fail "the version names no features: $version"
[ -s /usr/share/doc/sealane/copyright ] || fail "no copyright file"
[ "$(exposure)" -le 15 ] || fail "systemd-analyze security: $(exposure) tenths, at most 15"
[ -s /usr/lib/systemd/system/sealane-client@.service ] || fail "no unit for clients"

step "the default configuration, as the service's user"
setpriv --reuid sealane --regid sealane --clear-groups --inh-caps +net_bind_service --ambient-caps +net_bind_service \
	sealane serve -c /etc/sealane/sealane.toml 2>/tmp/log &
gateway=$!
tries=100
until curl -fs http://127.0.0.1/ >/tmp/page; do
	tries=$((tries - 1))
	[ $tries -gt 0 ] || fail "no welcome page: $(cat /tmp/log)"
	sleep 0.1
done
grep -q "Sealane works" /tmp/page || fail "another page: $(cat /tmp/page)"
sealane status >/dev/null || fail "sealane status"

step "upgrade of the running program"
dpkg -i /packages/newer/sealane_*.deb >/dev/null
sealane upgrade >/dev/null || fail "sealane upgrade"
curl -fs http://127.0.0.1/ | grep -q "Sealane works" || fail "no page after the upgrade"
sealane drain >/dev/null
wait $gateway || true

step "a changed configuration survives an upgrade and a downgrade"
echo "# changed" >>/etc/sealane/sealane.toml
dpkg -i /packages/sealane_*.deb >/dev/null 2>&1
dpkg -i /packages/newer/sealane_*.deb >/dev/null 2>&1
grep -q "# changed" /etc/sealane/sealane.toml || fail "the configuration was replaced"

step "the tunnel's package, the lab"
dpkg -i /packages/newer/sealane-openvpn_*.deb /packages/newer/sealane-lab_*.deb >/dev/null
[ "$(exposure)" -le 30 ] || fail "systemd-analyze security with a tunnel: $(exposure) tenths, at most 30"
sealane-lab --version >/dev/null || fail "sealane-lab --version"
for program in sealane sealane-lab; do
	for file in bash-completion/completions/$program zsh/vendor-completions/_$program fish/vendor_completions.d/$program.fish; do
		grep -q "$program" "/usr/share/$file" || fail "no completions: $file"
	done
done

step "removal and purge"
dpkg -r sealane-openvpn sealane-lab sealane >/dev/null 2>&1
[ -f /etc/sealane/sealane.toml ] || fail "removal took the configuration"
[ ! -e /usr/bin/sealane ] || fail "removal left the program"
dpkg -P sealane sealane-openvpn >/dev/null 2>&1
for left in /etc/sealane /var/log/sealane /var/lib/sealane /usr/lib/systemd/system/sealane.service.d; do
	[ ! -e $left ] || fail "purge left $left"
done
