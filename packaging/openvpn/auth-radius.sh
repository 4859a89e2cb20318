#!/bin/sh
# Checks a password by RADIUS, for auth_command of [tunnel]:
#
#   auth_command = ["/usr/libexec/sealane/auth-radius", "HOST[:PORT]", "FILE"]
#
# FILE contains the shared secret, on one line, and belongs to the gateway's user (mode 0600). Needs `radclient` (package
# freeradius-utils). RADIUS over UDP protects a password only weakly: use it on this machine or in a network that you trust.
#
# Exit codes: 0 accepted, 75 no answer, other: refused (docs/reference/tunnel.md). An Access-Challenge counts as refused.
set -u
export LC_ALL=C
if [ $# -ne 2 ]; then
    echo "usage: auth-radius HOST[:PORT] FILE" >&2
    exit 75
fi
IFS= read -r name || exit 1
IFS= read -r password || exit 1
# Limits of RFC 2865 §5.1 and §5.2. An empty attribute must not be sent (§5): the request would have no password at all.
if [ -z "$name" ] || [ ${#name} -gt 253 ] || [ -z "$password" ] || [ ${#password} -gt 128 ]; then
    exit 1
fi
if ! command -v radclient > /dev/null; then
    echo "auth-radius: radclient is not installed (package freeradius-utils)" >&2
    exit 75
fi
# A value between single quotes, as radclient reads it: only \ and ' have a meaning there.
quoted() {
    printf "'%s'" "$(printf '%s' "$1" | sed "s/[\\\\']/\\\\&/g")"
}
request="User-Name = $(quoted "$name")
User-Password = $(quoted "$password")
Calling-Station-Id = $(quoted "${untrusted_ip-}")
NAS-Identifier = 'sealane'
NAS-Port-Type = Virtual
Message-Authenticator = 0x00"
# At most 8 s: the gateway kills this program after 10 s.
output=$(printf '%s\n' "$request" | radclient -x -t 2 -r 4 -S "$2" "$1" auth 2>&1)
status=$?
if [ $status -eq 0 ] && printf '%s\n' "$output" | grep -q '^Received Access-Accept '; then
    exit 0
fi
if printf '%s\n' "$output" | grep -q '^Received Access-\(Reject\|Challenge\) '; then
    exit 1
fi
# Its last line says why; the others may contain the password.
echo "auth-radius: $1: $(printf '%s\n' "$output" | tail -n 1)" >&2
exit 75
