#!/bin/sh
# After the installation of sealane-openvpn: its system settings and the drop-in take effect.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	# By its name alone: a file of the same name in /etc/sysctl.d has precedence.
	/usr/lib/systemd/systemd-sysctl 60-sealane-openvpn.conf || true
	if systemctl is-active --quiet sealane.service; then
		echo "sealane-openvpn: before the first use of [tunnel], restart the gateway: systemctl restart sealane" >&2
	fi
fi
