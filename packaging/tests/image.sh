#!/bin/sh
# Runs the container images with podman, in namespaces of its own: `cargo xtask image --check`.
# Arguments: the archives of the gateway's and the lab's image.
set -eu

fail() {
	echo "failed: $*" >&2
	exit 1
}
step() { echo "  $*"; }

gateway_archive=$1
lab_archive=$2
work=$(mktemp -d)
trap 'podman_ rm -fa >/dev/null 2>&1 || true; umount -R "$work/storage" 2>/dev/null || true; rm -rf "$work"' EXIT
ip link set lo up
# What podman and its networks leave in /run goes with this mount namespace.
mount -t tmpfs none /run
# Some kernels and sandboxes have control groups of version 1 beside version 2, which crun does not run on.
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true

# A program, so that podman-compose can call it.
cat >"$work/podman" <<SCRIPT
#!/bin/sh
exec podman --root "$work/storage" --runroot "$work/run" --storage-driver vfs --events-backend none \\
	--network-config-dir "$work/networks" "\$@"
SCRIPT
chmod +x "$work/podman"
podman_() { "$work/podman" "$@"; }
# As a cautious administrator runs it: no capabilities, nothing to write to.
confined() {
	podman_ run --cgroups=disabled --network=host --no-hosts --ulimit nofile=4096:4096 --ulimit nproc=1024:1024 \
		--cap-drop=all --security-opt=no-new-privileges --read-only --read-only-tmpfs=false --no-healthcheck "$@"
}
image() { podman_ load --quiet --input "$1" | sed 's/^Loaded image: *//'; }

step "the gateway's image: a numeric user, a health check, no shell"
gateway=$(image "$gateway_archive")
[ "$(podman_ image inspect --format '{{.Config.User}}' "$gateway")" = 65532:65532 ] || fail "the user is not 65532:65532"
podman_ image inspect --format '{{.HealthCheck}}' "$gateway" | grep -q "sealane status" || fail "no health check"
if confined --rm --entrypoint /bin/sh "$gateway" -c true 2>/dev/null; then fail "the image has a shell"; fi

# The image has no shell that could print the file, so the file comes from the exported root of a container.
components() {
	container=$(podman_ create --cgroups=disabled --network=host --no-healthcheck "$1")
	podman_ export --output "$work/root.tar" "$container"
	podman_ rm "$container" >/dev/null
	tar -xOf "$work/root.tar" "usr/share/doc/$2/$2.cdx.json" >"$work/components" || fail "the image of $2 has no list of components"
	rm "$work/root.tar"
	grep -q '"bomFormat": *"CycloneDX"' "$work/components" || fail "the list of components of $2 is not CycloneDX"
	for crate in rustls tokio; do
		grep -q "\"name\": *\"$crate\"" "$work/components" || fail "the list of components of $2 lacks $crate"
	done
}

step "the lists of components"
components "$gateway" sealane
lab=$(image "$lab_archive")
components "$lab" sealane-lab

step "the welcome page, without capabilities and on a read-only root"
id=$(confined --detach "$gateway")
tries=100
until curl -fs http://127.0.0.1:8080/ >"$work/page"; do
	tries=$((tries - 1))
	[ $tries -gt 0 ] || fail "no welcome page: $(podman_ logs "$id" 2>&1)"
	sleep 0.1
done
grep -q "Sealane works" "$work/page" || fail "another page: $(cat "$work/page")"

step "the health check's command"
podman_ exec "$id" /usr/bin/sealane status --admin 127.0.0.1:9901 >/dev/null || fail "sealane status"
podman_ exec "$id" /usr/bin/sealane self check >/dev/null || fail "sealane self check"

step "the lab's image sends requests to it"
# Exit code 3: the figures are void, as on a busy machine.
confined --rm "$lab" load --duration 1s --rate 20 --connections 2 http://127.0.0.1:8080/ >"$work/load" || [ $? = 3 ] ||
	fail "sealane-lab load: $(cat "$work/load")"
grep -q ', 0 failed, 0 never started' "$work/load" || fail "requests failed: $(cat "$work/load")"

step "an orderly end"
podman_ stop --time 20 "$id" >/dev/null
code=$(podman_ inspect --format '{{.State.ExitCode}}' "$id")
[ "$code" = 0 ] || fail "exit code $code: $(podman_ logs "$id" 2>&1)"
podman_ rm "$id" >/dev/null

step "the compose file: the gateway redirects to HTTPS, and forwards to the application by its name"
cp -r "$(dirname "$0")/../../examples/compose" "$work/compose"
cd "$work/compose"
mkdir certs
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=example.com \
	-addext subjectAltName=DNS:example.com -keyout certs/example.com.key -out certs/example.com.pem 2>"$work/openssl" ||
	fail "openssl: $(cat "$work/openssl")"
# The image's user reads them.
chmod 644 certs/example.com.key
# A sandbox may not raise its limits.
sed -i 's/nofile: .*/nofile: 4096/' compose.yaml
compose() {
	podman-compose -f compose.yaml --podman-path "$work/podman" \
		--podman-run-args='--cgroups=disabled --ulimit=nproc=1024:1024 --ulimit=nofile=4096:4096' "$@" >>"$work/compose.log" 2>&1
}
logs() { cat "$work/compose.log" && podman_ logs compose_sealane_1 2>&1 && podman_ logs compose_app_1 2>&1; }
compose up -d || fail "podman-compose up: $(logs)"
tries=100
until curl -fs --max-time 5 --cacert certs/example.com.pem --resolve example.com:443:127.0.0.1 https://example.com/ >"$work/page"; do
	tries=$((tries - 1))
	[ $tries -gt 0 ] || fail "no page: $(logs)"
	sleep 0.1
done
grep -q "It works." "$work/page" || fail "another page: $(cat "$work/page")"
target=$(curl -s -o /dev/null -w '%{redirect_url}' -H 'Host: example.com' http://127.0.0.1/a)
[ "$target" = https://example.com/a ] || fail "port 80 redirects to: $target"
compose down || fail "podman-compose down: $(logs)"
[ -z "$(podman_ ps --all --quiet)" ] || fail "containers are left: $(podman_ ps --all)"
