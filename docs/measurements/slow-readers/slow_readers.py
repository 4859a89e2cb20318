#!/usr/bin/env python3
"""Latency of other clients while 2,000 clients read their downloads slowly: Sealane and NGINX, in turn, in one run.

Both servers run pinned to one core, each with its own 2,000 slow readers for the whole run. In every cycle each server in
turn gets a slice of requests at a constant rate from `sealane-lab load`, first without and, once the readers are there, with
them. Printed and stored: percentiles of every slice, medians over the cycles, and the memory for each slow reader.

    python3 slow_readers.py --sealane target/release/sealane --lab target/release/sealane-lab --out data.json
"""

import argparse
import json
import os
import re
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SERVER_CORE, CLIENT_CORE = "0", "1"
READERS, RATE, SECONDS, CYCLES = 2000, 1000, 10, 8
LARGE = 10 << 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def configure(folder, ports):
    """NGINX as the origin of a small and a large file, and both servers in front of it."""
    (folder / "www").mkdir()
    (folder / "www/large").write_bytes(os.urandom(LARGE))
    (folder / "www/small").write_bytes(b"x" * 1024)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", folder / "key", "-out", folder / "crt"], check=True, capture_output=True)
    common = f"""daemon off; user root; error_log {folder}/NAME.log warn; pid {folder}/NAME.pid; worker_processes 1;
worker_rlimit_nofile 20000; events {{ worker_connections 9000; }}
http {{ access_log off; keepalive_timeout 600s; keepalive_requests 100000000; send_timeout 600s;
client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4;
scgi_temp_path {folder}/t5;
"""
    (folder / "origin.conf").write_text(common.replace("NAME", "origin") + f"""
server {{ listen 127.0.0.1:{ports["origin"]} backlog=4096; root {folder}/www; }} }}""")
    (folder / "nginx.conf").write_text(common.replace("NAME", "nginx") + f"""
upstream o {{ server 127.0.0.1:{ports["origin"]}; keepalive 64; }}
server {{ listen 127.0.0.1:{ports["nginx"]} ssl backlog=4096; ssl_certificate {folder}/crt; ssl_certificate_key {folder}/key;
ssl_protocols TLSv1.3;
location / {{ proxy_pass http://o; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 600s;
proxy_max_temp_file_size 0; }} }} }}""")
    (folder / "sealane.toml").write_text(f"""lanes = 1
[log]
access = "off"
[limits]
keepalive_timeout = "600s"
idle_timeout = "600s"
min_body_rate = 0
[[listener]]
address = "127.0.0.1:{ports["sealane"]}"
[listener.tls]
certificates = [{{ cert = "{folder}/crt", key = "{folder}/key" }}]
[[host]]
names = ["*"]
upstream = "o"
[[upstream]]
name = "o"
servers = ["http://127.0.0.1:{ports["origin"]}"]
idle_timeout = "600s"
min_body_rate = 0
""")


def start(core, *command, log):
    with open(log, "wb") as out:
        return subprocess.Popen(["taskset", "-c", core, *map(str, command)], stdout=out, stderr=out)


def resident(pid):
    """The memory of a process and its children, in bytes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(own.group(1)) * 1024 + sum(resident(int(child)) for child in children)


def read_slowly(port, number):
    """A process: `number` clients that ask for the large file and read 512 bytes every two seconds."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connections = []
    for _ in range(number):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", port))
        t = context.wrap_socket(s, server_hostname="localhost")
        t.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        t.setblocking(False)
        connections.append(t)
    print("ready", flush=True)
    lost = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        begin = time.monotonic()
        for at, t in enumerate(connections):
            if t is None:
                continue
            try:
                if t.recv(512) == b"":
                    raise OSError("closed")
            except (ssl.SSLWantReadError, BlockingIOError):
                pass
            except OSError:
                connections[at], lost = None, lost + 1
            if at % 20 == 0:
                time.sleep(0.01)
        time.sleep(max(0.0, 2 - (time.monotonic() - begin)))
    print(lost, flush=True)


def load(lab, port, seconds):
    run = subprocess.run(
        ["taskset", "-c", CLIENT_CORE, lab, "load", f"https://localhost:{port}/small", "--quiet", "--json", "-c", "20", "-t", "1",
         "--rate", str(RATE), "-d", f"{seconds}s", "-w", "1s", "--verify", "none", "--tls", "1.3", "--cpus", "off",
         "--max-lag", "60s", "--max-pressure", "100"], capture_output=True, text=True)
    return json.loads(run.stdout), run.returncode


def find(document, *names):
    """The first value under one of these names, anywhere."""
    if isinstance(document, dict):
        for name in names:
            if name in document:
                return document[name]
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            found = find(value, *names)
            if found is not None:
                return found
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sealane")
    parser.add_argument("--lab")
    parser.add_argument("--out")
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--slow", nargs=2, type=int, metavar=("PORT", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.slow:
        return read_slowly(*options.slow)
    import resource
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    ports = {name: free_port() for name in ("origin", "nginx", "sealane")}
    configure(folder, ports)
    started = [start(CLIENT_CORE, "nginx", "-c", folder / "origin.conf", log=folder / "o")]
    servers = {
        "nginx": start(SERVER_CORE, "nginx", "-c", folder / "nginx.conf", log=folder / "n"),
        "sealane": start(SERVER_CORE, options.sealane, "serve", "-c", folder / "sealane.toml", log=folder / "s"),
    }
    started += servers.values()
    result = {"readers": READERS, "rate": RATE, "seconds": SECONDS, "servers": {n: {} for n in servers}}
    try:
        time.sleep(2)
        for name in servers:
            load(options.lab, ports[name], 3)
        before = {name: resident(p.pid) for name, p in servers.items()}
        slices = {name: {"alone": [], "beside": []} for name in servers}
        for _ in range(max(2, options.cycles // 4)):
            for name in servers:
                slices[name]["alone"].append(load(options.lab, ports[name], SECONDS)[0])
        readers = {}
        for name in servers:
            readers[name] = subprocess.Popen(
                ["taskset", "-c", CLIENT_CORE, sys.executable, __file__, "--slow", str(ports[name]), str(READERS)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert readers[name].stdout.readline() == "ready\n", name
        time.sleep(10)
        for cycle in range(options.cycles):
            for name in sorted(servers, reverse=cycle % 2 == 1):
                slices[name]["beside"].append(load(options.lab, ports[name], SECONDS)[0])
        for name, p in servers.items():
            own = result["servers"][name]
            own["bytes_per_reader"] = (resident(p.pid) - before[name]) / READERS
            own["slices"] = slices[name]
        for name, p in readers.items():
            p.stdin.write("\n")
            p.stdin.flush()
            result["servers"][name]["readers_lost"] = int(p.stdout.readline())
            p.wait()
    finally:
        for p in started:
            p.terminate()
            p.wait()
    Path(options.out).write_text(json.dumps(result, indent=1))
    print(options.out)


if __name__ == "__main__":
    main()
