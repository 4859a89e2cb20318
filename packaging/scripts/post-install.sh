#!/bin/sh
# After the installation of sealane, on Debian ("configure", and the old version on an upgrade) and on RPM systems (1 on a first
# installation, 2 on an upgrade): creates the user; starts the service, or replaces the running program without refusing a client.
set -e

config=/etc/sealane/sealane.toml

upgrade() {
	again="sealane upgrade (without an admin socket: systemctl kill -s USR2 --kill-who=main sealane)"
	if ! /usr/bin/sealane check -c "$config"; then
		echo "sealane: the new version refuses $config for the reason above." >&2
		echo "sealane: the old version keeps serving. Correct the file, then run: $again" >&2
	elif ! /usr/bin/sealane upgrade; then
		echo "sealane: the old version keeps serving. Remove the cause above, then run: $again" >&2
	fi
}

systemd-sysusers sealane.conf
# Fails in containers that lack the service's folders; they do not need these rights.
systemd-tmpfiles --create sealane.conf || true

case "$1" in
configure) if [ -n "$2" ]; then action=upgrade; else action=start; fi ;;
1) action=preset ;;
2) action=upgrade ;;
*) action=none ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
case "$action" in
start)
	# Respects an administrator's policy-rc.d, and presets.
	deb-systemd-helper enable sealane.service >/dev/null || true
	if [ -d /run/systemd/system ]; then
		deb-systemd-invoke start sealane.service || true
	fi
	;;
preset) systemctl preset sealane.service || true ;;
upgrade)
	if [ -d /run/systemd/system ] && systemctl is-active --quiet sealane.service; then
		upgrade
	fi
	;;
esac
