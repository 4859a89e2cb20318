#!/bin/sh
# Checks a password by PAM, for auth_command of [tunnel]:
#
#   auth_command = ["/usr/libexec/sealane/auth-pam", "SERVICE"]
#
# SERVICE is a file in /etc/pam.d (default: sealane). Needs `pamtester`. The modules run as the gateway's user: pam_sss, pam_ldap and
# pam_radius_auth work; pam_unix does not, because only root may read the hashes of other users.
#
# Exit codes: 0 accepted, 75 PAM cannot check the password now, other: refused (docs/reference/tunnel.md).
set -u
export LC_ALL=C
service=${1:-sealane}
IFS= read -r name || exit 1
IFS= read -r password || exit 1
# The name is an argument of pamtester: it must not be an option.
case $name in '' | -*) exit 1 ;; esac
if ! command -v pamtester > /dev/null; then
    echo "auth-pam: pamtester is not installed" >&2
    exit 75
fi
output=$(printf '%s\n' "$password" | pamtester -I "rhost=${untrusted_ip-}" "$service" "$name" authenticate acct_mgmt 2>&1) && exit 0
reason=$(printf '%s\n' "$output" | sed -n 's/.*pamtester: //p' | tail -n 1)
# All other reasons are refusals, so that wrong passwords always count as guesses.
case $reason in
'Authentication service cannot retrieve authentication info' | 'System error' | 'Module is unknown' | 'Critical error'* | \
    'Memory buffer error' | 'Error in service module' | 'Failed to load module' | 'Symbol not found' | \
    'Insufficient credentials'*)
    echo "auth-pam: $service: $reason" >&2
    exit 75
    ;;
esac
exit 1
