#!/bin/sh
# Installs the RPM packages in an empty root by Debian's rpm, verifies, upgrades and erases them: `cargo xtask package --check`.
# Arguments: the folder of the packages, and the folder of those of a newer version. The root has no shell, so scripts do not run there.
# They run here, with stand-ins for systemd's programs.
set -eu

fail() {
	echo "failed: $*" >&2
	exit 1
}
step() { echo "  $*"; }

packages=$1
newer=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir "$root"
# Debian's rpm warns that alien is the tool for Debian: its messages are shown only when it fails.
in_root() { rpm --root "$root" --dbpath /var/lib/rpm "$@" 2>"$work/messages" || fail "rpm $*: $(cat "$work/messages")"; }
verify() {
	for package in sealane sealane-lab sealane-openvpn; do
		in_root -V --nodeps --noscripts $package >"$work/differences" || fail "rpm -V $package: $(cat "$work/differences")"
	done
}

step "installation, files and owners"
in_root --initdb
in_root -i --nodeps --noscripts --nosignature --ignorearch "$packages"/*.rpm
verify
for package in sealane sealane-lab sealane-openvpn; do
	in_root -q --queryformat '[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]' $package >"$work/owners"
	[ "$(sort -u "$work/owners")" = root:root ] || fail "owners of files in $package: $(sort -u "$work/owners")"
done
while read -r mode file; do
	[ "$(stat -c %a "$root/$file" 2>&1)" = "$mode" ] || fail "$file: $(stat -c %a "$root/$file" 2>&1), not $mode"
	[ -s "$root/$file" ] || fail "$file is empty"
done <<'FILES'
755 usr/bin/sealane
755 usr/bin/sealane-lab
640 etc/sealane/sealane.toml
644 etc/logrotate.d/sealane
644 usr/lib/systemd/system/sealane.service
644 usr/lib/systemd/system/sealane.service.d/openvpn.conf
644 usr/lib/sysctl.d/60-sealane-openvpn.conf
644 usr/lib/sysusers.d/sealane.conf
644 usr/lib/tmpfiles.d/sealane.conf
755 usr/libexec/sealane/auth-pam
644 usr/share/man/man1/sealane.1.gz
644 usr/share/bash-completion/completions/sealane
644 usr/share/zsh/site-functions/_sealane
644 usr/share/zsh/site-functions/_sealane-lab
644 usr/share/fish/vendor_completions.d/sealane-lab.fish
644 usr/share/doc/sealane/copyright
FILES
[ "$(in_root -qc sealane | sort | tr '\n' ' ')" = "/etc/logrotate.d/sealane /etc/sealane/sealane.toml " ] ||
	fail "configuration files: $(in_root -qc sealane)"

step "scripts"
package=$(echo "$packages"/sealane-[0-9]*.rpm)
rpm -qp --nosignature --scripts "$package" >"$work/scripts" 2>/dev/null || fail "rpm -qp --scripts $package"
for script in postinstall preuninstall postuninstall; do
	grep -q "^$script scriptlet" "$work/scripts" || fail "no $script script: $(cat "$work/scripts")"
done
mkdir "$work/bin"
for program in systemctl systemd-sysusers systemd-tmpfiles; do
	# No service is active, so that the script of an upgrade does not ask a gateway of this machine.
	cat >"$work/bin/$program" <<SCRIPT
#!/bin/sh
echo "$program \$*" >>"$work/calls"
[ "\$1" != is-active ]
SCRIPT
	chmod +x "$work/bin/$program"
done
# Runs a script as rpm does: the argument is how many versions of the package are there afterwards.
script() {
	: >"$work/calls"
	rpm -qp --nosignature --queryformat "%{$1}" "$package" >"$work/script" 2>/dev/null || fail "rpm has no $1"
	[ -s "$work/script" ] || fail "the script $1 is empty"
	PATH="$work/bin:$PATH" sh "$work/script" "$2" >"$work/output" 2>&1 || fail "$1 $2: $(cat "$work/output")"
}
called() { grep -qxF "$*" "$work/calls" || fail "the script did not call $*, but: $(cat "$work/calls")"; }
script POSTIN 1
called systemd-sysusers sealane.conf
called systemd-tmpfiles --create sealane.conf
called systemctl preset sealane.service
script POSTIN 2
if grep -Eq 'preset|enable|start|stop' "$work/calls"; then fail "an upgrade changes the service: $(cat "$work/calls")"; fi
script PREUN 1
[ ! -s "$work/calls" ] || fail "an upgrade calls: $(cat "$work/calls")"
script PREUN 0
script POSTUN 0

step "an upgrade keeps a changed configuration"
echo "# changed" >>"$root/etc/sealane/sealane.toml"
in_root -U --nodeps --noscripts --nosignature --ignorearch "$newer"/*.rpm
grep -qx "# changed" "$root/etc/sealane/sealane.toml" || fail "the configuration was replaced"
for package in sealane sealane-lab sealane-openvpn; do
	version=$(in_root -q --queryformat '%{VERSION}' $package)
	[ "$version" != "${version%+1}" ] || fail "$package has the version $version after the upgrade"
done

step "erasure leaves only the changed configuration"
in_root -e --nodeps --noscripts sealane-openvpn sealane-lab sealane
[ "$(cd "$root" && find etc usr -type f)" = etc/sealane/sealane.toml.rpmsave ] || fail "left: $(cd "$root" && find etc usr -type f)"
