#!/bin/sh
# Before the removal of sealane ("remove" on Debian, 0 on RPM systems). An upgrade stops nothing.
set -e

case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now sealane.service || true
	fi
	;;
esac
