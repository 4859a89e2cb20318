#!/bin/sh
# After the removal of sealane. `apt purge` also removes logs and state; the user stays, since files may belong to it.
set -e

if [ "$1" = purge ]; then
	rm -rf /var/log/sealane /var/lib/sealane
	rmdir /etc/sealane 2>/dev/null || true
	if command -v deb-systemd-helper >/dev/null; then
		deb-systemd-helper purge sealane.service >/dev/null || true
	fi
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
