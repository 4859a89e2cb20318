"""The servers that run.py compares: certificates, configurations, processes and what these have cost."""

import hashlib
import os
import resource
import shutil
import socket
import subprocess
import time
from pathlib import Path

SERVER_CORE, CLIENT_CORE = 0, 1
BODY = "x" * 1024
BULK = 1 << 30
# What follows it is a setting of every TLS context in a program that reads it.
OPENSSL_CONF = "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = every\n[every]\n"


# ---- Subjects -------------------------------------------------------------------------------------------------------


class Subject:
    """One server under test: how it is configured, started and accounted."""

    def __init__(self, name, kind, binary, own_tls=False):
        self.name, self.kind, self.binary = name, kind, binary
        # Built with AWS-LC, which neither server can tell the number of tickets: see README.md.
        self.own_tls = own_tls
        self.process = None

    def start(self, room, answer, key, tickets, logs, quic=False):
        """`answer`: "respond" by itself or "proxy" to the backend; `key`: "ecdsa" or "rsa"."""
        port = free_port()
        folder = room.path / f"{answer}-{key}-{tickets}-{self.name}"
        folder.mkdir(exist_ok=True)
        configure = {"nginx": nginx, "haproxy": haproxy, "sealane": sealane}[self.kind]
        text, command = configure(self, room, folder, port, answer, key, tickets, logs, quic)
        command[0] = room.copy(self.binary)
        config = folder / ("sealane.toml" if self.kind == "sealane" else "config")
        config.write_text(text)
        env = dict(os.environ, PEER_TICKETS=str(tickets))
        if self.kind == "haproxy" and not self.own_tls:
            env["OPENSSL_CONF"] = str(room.openssl_conf(tickets))
        self.port, self.output = port, folder / "output.log"
        with open(self.output, "wb") as output:
            pinned = ["taskset", "-c", str(SERVER_CORE), *command, str(config)]
            self.process = subprocess.Popen(pinned, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        wait_for(port, self)

    def stop(self):
        if self.process:
            end(self.process)
            self.process = None

    def pids(self):
        return tree(self.process.pid)


def nginx(subject, room, folder, port, answer, key, tickets, logs, quic):
    """NGINX: one worker; unlimited requests per connection, a pool to the backend, the usual forwarding fields,
    and no download ever spilled to disk."""
    if answer == "respond":
        place = f'default_type text/plain; return 200 "{BODY}";'
    else:
        place = """proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_max_temp_file_size 0;"""
    http2 = "http2 on;" if subject.own_tls else ""
    listen = "ssl" if subject.own_tls else "ssl http2"
    number = "" if subject.own_tls else f"ssl_conf_command NumTickets {tickets};"
    udp = f"listen 127.0.0.1:{port} quic reuseport; http3 on; quic_gso on;" if quic else ""
    text = f"""
daemon off; user root; pid {folder}/pid; error_log {folder}/error.log warn; worker_processes 1;
worker_rlimit_nofile {room.files};
events {{ worker_connections 8000; }}
http {{
    access_log {f"{folder}/access.log" if logs else "off"};
    keepalive_requests 1000000000; keepalive_timeout 300s;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    upstream backend {{ server 127.0.0.1:{room.backend}; keepalive 1024; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} {listen} backlog=4096; {http2} {udp}
        http2_max_concurrent_streams 128;
        ssl_certificate {room.path}/{key}.crt; ssl_certificate_key {room.path}/{key}.key;
        ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve X25519; {number}
        location / {{ {place} }}
    }}
}}
"""
    return text, [subject.binary, "-p", str(folder), "-e", f"{folder}/error.log", "-c"]


def haproxy(subject, room, folder, port, answer, key, tickets, logs, quic):
    """HAProxy: one thread; it logs to its standard output, which is a file, as NGINX does to its access log."""
    place = "http-request return status 200 content-type text/plain file " + str(room.path / "body")
    udp = f"bind quic4@127.0.0.1:{port} ssl crt {room.path}/{key}.pem curves X25519 alpn h3" if quic else ""
    text = f"""
global
    nbthread 1
    maxconn 8000
    {"log stdout format raw local0" if logs else ""}
defaults
    mode http
    {"log global" if logs else "no log"}
    {"option httplog" if logs else ""}
    option forwardfor
    timeout connect 5s
    timeout client 300s
    timeout server 60s
    timeout http-keep-alive 300s
frontend front
    bind 127.0.0.1:{port} ssl crt {room.path}/{key}.pem curves X25519 alpn h2,http/1.1 backlog 4096
    {udp}
    {place if answer == "respond" else "default_backend back"}
backend back
    http-reuse always
    server backend 127.0.0.1:{room.backend}
"""
    return text, [subject.binary, "-db", "-f"]


def sealane(subject, room, folder, port, answer, key, tickets, logs, quic):
    """Sealane: one lane, everything else as it comes."""
    place = f'respond = {{ status = 200, body = "{BODY}" }}'
    if answer == "proxy":
        place = f'to = ["http://127.0.0.1:{room.backend}"]'
    text = f"""
lanes = 1
[log]
access = "{f"{folder}/access.log" if logs else "off"}"
[limits]
keepalive_timeout = "300s"
[[listener]]
address = "127.0.0.1:{port}"
http3 = {"true" if quic else "false"}
[listener.tls]
certificates = [{{ cert = "{room.path}/{key}.crt", key = "{room.path}/{key}.key" }}]
groups = ["x25519"]
tickets = {tickets}
[[host]]
names = ["*"]
{place}
"""
    return text, [subject.binary, "serve", "-c"]


# ---- The room: certificates, backend, files -------------------------------------------------------------------------


class Room:
    """A temporary folder with what all subjects share, and the plain backend on the client's core."""

    name = "backend"

    def __init__(self, path, backend):
        self.path, self.process, self.backend = Path(path), None, free_port()
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        for name, key in [("ecdsa", ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]), ("rsa", ["rsa:2048"])]:
            files = [f"{path}/{name}.{end}" for end in ("key", "crt", "pem")]
            subprocess.run(
                ["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-newkey", *key,
                 "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", files[0], "-out", files[1]],
                check=True, capture_output=True)  # fmt: skip
            Path(files[2]).write_text(Path(files[1]).read_text() + Path(files[0]).read_text())
        (self.path / "body").write_text(BODY)
        with open(self.path / "bulk", "wb") as bulk:
            bulk.truncate(BULK)
        os.chmod(self.path, 0o755)
        (self.path / "backend.conf").write_text(f"""
daemon off; user root; pid {path}/backend.pid; error_log {path}/backend.log warn; worker_processes 1;
worker_rlimit_nofile {self.files};
events {{ worker_connections 4096; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; sendfile on;
    server {{
        listen 127.0.0.1:{self.backend} backlog=4096;
        location / {{ default_type text/plain; return 200 "{BODY}"; }}
        location = /bulk {{ root {path}; }}
    }}
}}
""")
        command = ["taskset", "-c", str(CLIENT_CORE), backend, "-e", f"{path}/backend.log"]
        command += ["-c", f"{path}/backend.conf"]
        self.output = self.path / "backend.out"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        wait_for(self.backend, self)

    def copy(self, binary):
        """What a linker wrote lies in small pages of the file cache, what was copied in large ones: 2 % of a handshake."""
        path = self.path / f"bin-{hashlib.sha256(str(binary).encode()).hexdigest()[:8]}"
        if not path.exists():
            shutil.copy(binary, path)
        return str(path)

    def openssl_conf(self, tickets):
        """HAProxy has no setting for the number of tickets; OpenSSL reads one for every program."""
        path = self.path / f"openssl-{tickets}.cnf"
        path.write_text(OPENSSL_CONF + f"NumTickets = {tickets}\n")
        return path


# ---- Processes and their cost ---------------------------------------------------------------------------------------


def tree(pid):
    """The process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for known in found:
        found.extend(parents.get(known, []))
    return found


def cpu_ns(pids):
    """Nanoseconds on a CPU, all threads of all the processes (first field of schedstat)."""
    paths = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in paths)


def pss_kib(pids):
    """Proportional memory of the processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def cpu_model():
    """What the machine says it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")


def busy_seconds():
    """Seconds that all CPUs have spent on anything, time taken by the hypervisor included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(port, owner):
    for _ in range(200):
        if owner.process.poll() is not None:
            raise SystemExit(f"{owner.name} ended at its start:\n{owner.output.read_text()}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def end(process):
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
