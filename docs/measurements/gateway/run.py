#!/usr/bin/env python3
"""What a request costs: Sealane beside NGINX and HAProxy, one core each, in interleaved rounds.

README.md beside this file says what is asked and how it is answered; `run.py --help` lists the options.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from subjects import BODY, BULK, CLIENT_CORE, OPENSSL_CONF, Room, Subject
from subjects import busy_seconds, cpu_model, cpu_ns, end, pss_kib, tree

IDLE = 5000
CONNECTIONS = 32
H2_CONNECTIONS, H2_STREAMS = 16, 32
# The smallest rate that leaves twelve samples beyond p99.9 in twelve seconds.
STORM_RATE, STORM_SECONDS, STORM_CONNECTIONS = 1000, 12, 64

# name: (what the subject does, kind of key, TLS 1.3 tickets, unit, what one figure is)
CASES = {
    "full-ecdsa": ("respond", "ecdsa", 2, "µs", "full TLS 1.3, ECDSA P-256, one request, close"),
    "full-rsa": ("respond", "rsa", 2, "µs", "full TLS 1.3, RSA-2048, one request, close"),
    "resumed": ("respond", "ecdsa", 1, "µs", "resumed TLS 1.3, one request, close"),
    "keepalive": ("proxy", "ecdsa", 2, "µs", "keep-alive, proxied, 1 KiB, plain backend"),
    "h2": ("proxy", "ecdsa", 2, "µs", "HTTP/2, 16 connections of 32 streams, proxied, 1 KiB, plain backend"),
    "bulk": ("proxy", "ecdsa", 2, "ms", "1 GiB download, proxied"),
    "memory": ("respond", "ecdsa", 2, "KiB", "memory per idle TLS 1.3 keep-alive connection"),
    "h3": ("proxy", "ecdsa", 2, "µs", "HTTP/3, 16 connections, proxied, 1 KiB, plain backend"),
    "quic-handshake": ("respond", "ecdsa", 2, "µs", "full QUIC handshake, ECDSA P-256, one HTTP/3 request, close"),
    "h3-bulk": ("proxy", "ecdsa", 2, "ms", "1 GiB download over HTTP/3, proxied"),
    "storm": ("respond", "rsa", 2, "ms", "p99.9 of keep-alive requests beside a storm of full RSA handshakes"),
}


# Over UDP; Debian's NGINX and HAProxy have no HTTP/3.
QUIC = ("h3", "quic-handshake", "h3-bulk")
QUIC_CONNECTIONS = 16


# ---- Loads ----------------------------------------------------------------------------------------------------------


class Lab:
    """Our own load generator."""

    def __init__(self, binary):
        self.binary = binary

    def command(self, subject, seconds, connections, *more, first=()):
        return [*first, "taskset", "-c", str(CLIENT_CORE), self.binary, "load", "--quiet", "--json", "--threads", "1",
                "--cpus", str(CLIENT_CORE), "--connections", str(connections), "--duration", f"{seconds}s",
                "--warmup", "0s", "--tls", "1.3", "--ciphers", "TLS_AES_128_GCM_SHA256", "--groups", "X25519",
                # The client's part is kept small, so that the server's core is the one that is full. The
                # generator's own bounds are for latencies; foreign load is judged here, for all loads alike.
                "--verify", "none", "--max-pressure", "100", *more, f"https://127.0.0.1:{subject.port}/"]  # fmt: skip

    @staticmethod
    def read(output, quic=False):
        report = json.loads(output)
        if quic:
            # The generator does not see suite and group under QUIC; the server offers one group.
            return report
        negotiated = report["negotiated"]
        wanted = ("TLSv1_3", "TLS13_AES_128_GCM_SHA256", "X25519")
        if (negotiated["version"], negotiated["suite"], negotiated["group"]) != wanted:
            raise SystemExit(f"negotiated something else: {negotiated}")
        return report

    def operations(self, case, subject, seconds):
        """Runs one saturating load; how many operations were completed, and what goes along into the record."""
        kind = {"full-ecdsa": ["--handshake", "full"], "full-rsa": ["--handshake", "full"],
                "resumed": ["--handshake", "resumed"], "keepalive": [],
                "h2": ["--http", "2", "--streams", str(H2_STREAMS)], "h3": ["--http", "3"],
                "quic-handshake": ["--http", "3", "--handshake", "full"]}[case]  # fmt: skip
        connections = {"h2": H2_CONNECTIONS, "h3": QUIC_CONNECTIONS, "quic-handshake": QUIC_CONNECTIONS}
        connections = connections.get(case, CONNECTIONS)
        done = subprocess.run(self.command(subject, seconds, connections, *kind), capture_output=True, text=True)
        report = self.read(done.stdout, case in QUIC)
        shakes = report["handshakes"]
        more = {"failed": report["failed"], "client_busy": round(report["client"]["busiest"], 3)}
        if shakes and (made := shakes["full"] + shakes["resumed"]):
            more |= {"handshakes": shakes, "tickets_per_handshake": round(shakes["tickets"] / made, 2)}
        return report["completed"], more


class H1load:
    """HAProxy's own load generator: figures of our loader should not depend on our loader."""

    def __init__(self, binary, room):
        self.binary = binary
        self.conf = room.path / "h1load.cnf"
        self.conf.write_text(OPENSSL_CONF + "Groups = X25519\nCiphersuites = TLS_AES_128_GCM_SHA256\n")

    def operations(self, case, subject, seconds):
        command = ["taskset", "-c", str(CLIENT_CORE), self.binary, "-d", str(seconds), "-c", str(CONNECTIONS), "-l",
                   "--tls-ver", "TLS1.3"]  # fmt: skip
        command += [] if case == "keepalive" else ["-r", "1"]
        command.append(f"https://127.0.0.1:{subject.port}/")
        env = dict(os.environ, OPENSSL_CONF=str(self.conf))
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
        return int(rows[-1][3]), {"failed": int(rows[-1][5])}


def saturate(case, subject, load, options):
    """Server CPU microseconds per operation under a closed loop."""
    before = cpu_ns(subject.pids())
    operations, more = load.operations(case, subject, options.seconds)
    spent = cpu_ns(subject.pids()) - before
    wanted, got = CASES[case][2], more.get("tickets_per_handshake")
    if more["failed"] or not operations:
        more["void"] = f"{more['failed']} of {operations} operations failed"
    elif case not in ("keepalive", "h2", "h3") and got and abs(got - wanted) > 0.2:
        more["void"] = f"{got} tickets for each handshake instead of {wanted}"
    return {"value": spent / 1e3 / max(operations, 1), "operations": operations, **more}


def bulk(_case, subject, _load, _options):
    """Server CPU milliseconds for one large proxied download."""
    before = cpu_ns(subject.pids())
    done = subprocess.run(
        ["taskset", "-c", str(CLIENT_CORE), "curl", "-sk", "--http1.1", "-o", "/dev/null",
         "--tls13-ciphers", "TLS_AES_128_GCM_SHA256", "--curves", "X25519", "-w", "%{size_download} %{time_total}", f"https://127.0.0.1:{subject.port}/bulk"],
        capture_output=True, text=True, check=True)  # fmt: skip
    spent = cpu_ns(subject.pids()) - before
    size, seconds = done.stdout.split()
    row = {"value": spent / 1e6, "seconds": float(seconds)}
    return row if int(size) == BULK else {**row, "void": f"{size} bytes came"}


def h3_bulk(_case, subject, load, _options):
    """Server CPU milliseconds for one large proxied download over HTTP/3."""
    before, start = cpu_ns(subject.pids()), time.monotonic()
    command = load.command(subject, 60, 1, "--http", "3", "--requests", "1", "--timeout", "60s")
    command[-1] += "bulk"
    # One download, however long it takes.
    at = command.index("--duration")
    del command[at:at + 2]
    report = load.read(subprocess.run(command, capture_output=True, text=True).stdout, quic=True)
    spent = cpu_ns(subject.pids()) - before
    row = {"value": spent / 1e6, "seconds": time.monotonic() - start}
    return row if report["completed"] == 1 and not report["failed"] else {**row, "void": "it did not come whole"}


def memory(_case, subject, _load, _options):
    """KiB more in the server for each of many connections that made a request and went idle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connection():
        stream = socket.create_connection(("127.0.0.1", subject.port))
        # Else the request waits until the server's kernel acknowledges the Finished before it, some 40 ms later.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = context.wrap_socket(stream)
        stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while len(answer) < len(BODY) or not answer.endswith(BODY.encode()):
            answer += stream.recv(4096)
        return stream

    for _ in range(100):
        connection().close()
    time.sleep(1)
    before = pss_kib(subject.pids())
    kept = [connection() for _ in range(IDLE)]
    time.sleep(2)
    after = pss_kib(subject.pids())
    for stream in kept:
        stream.close()
    return {"value": (after - before) / IDLE, "before_kib": before, "after_kib": after}


def storm(_case, subject, load, options):
    """p99.9 of requests at a fixed rate on open connections, while new clients take all the CPU they can get.

    Both clients share a core; the one whose latency counts always goes first (SCHED_FIFO), so that what it
    measures is the server.
    """
    wild = load.command(subject, STORM_SECONDS + 3, STORM_CONNECTIONS, "--handshake", "full")
    calm = load.command(subject, STORM_SECONDS, CONNECTIONS, "--rate", str(STORM_RATE), first=["chrt", "-f", "10"])
    with subprocess.Popen(wild, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        time.sleep(1)
        before, start = cpu_ns(subject.pids()), time.monotonic()
        report = load.read(subprocess.run(calm, capture_output=True, text=True).stdout)
        share = (cpu_ns(subject.pids()) - before) / 1e9 / (time.monotonic() - start)
        shakes = load.read(other.communicate()[0])
    tail = report["latency"]["percentiles"]
    row = {"value": tail["p99.9"] / 1e6, "p50_ms": tail["p50"] / 1e6, "p99_ms": tail["p99"] / 1e6,
           "handshakes_per_second": round(shakes["rate"]), "server_busy": round(share, 3)}  # fmt: skip
    return {**row, "void": "; ".join(report["void"])} if report["void"] else row


# ---- Rounds and tables ----------------------------------------------------------------------------------------------


def await_quiet(options):
    """Waits, though not for ever, until nothing else wants the machine."""
    limit = time.monotonic() + options.patience
    while time.monotonic() < limit:
        busy = busy_seconds()
        time.sleep(0.5)
        if (busy_seconds() - busy) / 0.5 <= options.max_foreign:
            return


def our_seconds(subject, room):
    """CPU seconds of everything that belongs to a measurement: server, backend, loads that ended, ourselves."""
    loads = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return loads + cpu_ns(subject.pids() + tree(room.process.pid)) / 1e9


def measure(case, subject, load, options, room):
    """One round of one subject, repeated while others on the machine took too much of it."""
    run = {"bulk": bulk, "h3-bulk": h3_bulk, "memory": memory, "storm": storm}.get(case, saturate)
    for _ in range(options.tries):
        if case != "memory":
            await_quiet(options)
        busy, own, start = busy_seconds(), our_seconds(subject, room), time.monotonic()
        row = run(case, subject, load, options)
        foreign = (busy_seconds() - busy) - (our_seconds(subject, room) - own)
        row["foreign"] = round(max(foreign, 0.0) / (time.monotonic() - start), 3)
        # Memory does not depend on who else computes.
        if row["foreign"] > options.max_foreign and case != "memory":
            row.setdefault("void", f"others used {row['foreign']:.2f} CPUs")
        if "void" not in row:
            break
    return row


def run_case(case, subjects, load, options, room):
    if case in QUIC:
        subjects = [subject for subject in subjects if subject.own_tls or subject.kind == "sealane"]
    rows = {subject.name: [] for subject in subjects}
    try:
        for subject in subjects:
            subject.start(room, *CASES[case][:3], options.logs, case in QUIC)
        if case in ("full-ecdsa", "full-rsa", "resumed", "keepalive", "h2", "h3", "quic-handshake"):
            for subject in subjects:
                load.operations(case, subject, 1)
        # A server keeps what it once needed: a second round would find nothing more.
        for number in range(1 if case == "memory" else options.rounds):
            # There and back, each pair beginning with another subject: drift and order fall on all alike.
            turn = (number // 2) % len(subjects)
            order = subjects[turn:] + subjects[:turn]
            for subject in order if number % 2 == 0 else order[::-1]:
                row = measure(case, subject, load, options, room)
                rows[subject.name].append(row)
                note = f"  void: {row['void']}" if "void" in row else ""
                print(f"{case:14} round {number + 1} {subject.name:15} {row['value']:8.2f}{note}", file=sys.stderr)
    finally:
        for subject in subjects:
            subject.stop()
    return rows


def table(result):
    """Markdown: medians with quartiles, and Sealane's part of each peer's figure, paired round by round."""
    names = [name for name in result["subjects"]]
    head = ["", *names] + [f"sealane ÷ {name}" for name in names if "sealane" in names and name != "sealane"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for case, rows in result["cases"].items():
        unit, what = CASES[case][3:]
        cells, good = [f"{what} ({unit})"], {}
        for name in names:
            if name not in rows:
                cells.append("–")
                good[name] = {}
                continue
            good[name] = {n: row["value"] for n, row in enumerate(rows[name]) if "void" not in row}
            values = sorted(good[name].values())
            if not values:
                cells.append("void")
                continue
            low, high = values[len(values) // 4], values[-1 - len(values) // 4]
            mark = "" if len(values) == len(rows[name]) else f", {len(rows[name]) - len(values)} void"
            cells.append(f"{statistics.median(values):.1f} ({low:.1f}–{high:.1f}{mark})")
        for name in names if "sealane" in names else []:
            if name != "sealane":
                both = good["sealane"].keys() & good[name].keys()
                pairs = [good["sealane"][n] / good[name][n] for n in both]
                cells.append(f"{statistics.median(pairs):.2f}" if pairs else "void")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def version(subject):
    flag = {"nginx": "-V", "haproxy": "-vv", "sealane": "--version"}[subject.kind]
    done = subprocess.run([subject.binary, flag], capture_output=True, text=True)
    # The number, the compiler and its flags, the TLS library; not where things were built.
    wanted = ("nginx version", "built ", "HAProxy version", "CFLAGS", "Built with SSL", "Built with OpenSSL version",
              "Running on SSL", "Running on OpenSSL", "sealane")  # fmt: skip
    lines = (line.strip() for line in (done.stdout + done.stderr).splitlines())
    return [line.partition(" -Wall")[0] for line in lines if line.startswith(wanted)]


def common_options(parser, cases):
    """What together.py asks, too."""
    parser.add_argument("--print", metavar="FILE", help="print the table of an earlier run, and nothing else")
    parser.add_argument("--cases", default=",".join(cases), help="default: %(default)s")
    parser.add_argument("--sealane", metavar="BINARY", help="the gateway; left out: the peers alone")
    parser.add_argument("--lab", metavar="BINARY", default="target/release/sealane-lab", help="default: %(default)s")
    parser.add_argument("--nginx", metavar="BINARY", default="/usr/sbin/nginx", help="Debian's; default: %(default)s")
    parser.add_argument("--haproxy", metavar="BINARY", default="/usr/sbin/haproxy", help="default: %(default)s")
    parser.add_argument("--nginx-awslc", metavar="BINARY", help="a newest NGINX, built with AWS-LC")
    parser.add_argument("--haproxy-awslc", metavar="BINARY", help="a newest HAProxy, built with AWS-LC")
    parser.add_argument("--no-logs", dest="logs", action="store_false", help="access logs off, for all")
    parser.add_argument("--json", metavar="FILE", help="where the raw figures go")


def chosen_subjects(options):
    subjects = [Subject("nginx-debian", "nginx", options.nginx), Subject("haproxy-debian", "haproxy", options.haproxy)]
    if options.nginx_awslc:
        subjects.append(Subject("nginx-awslc", "nginx", options.nginx_awslc, own_tls=True))
    if options.haproxy_awslc:
        subjects.append(Subject("haproxy-awslc", "haproxy", options.haproxy_awslc, own_tls=True))
    if options.sealane:
        subjects.insert(0, Subject("sealane", "sealane", options.sealane))
    return subjects


def record(options, subjects, **more):
    """What the figures were made of; they come into `cases`."""
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(), "cpu": cpu_model(), "logs": options.logs,
        "rounds": options.rounds, "seconds": options.seconds, **more,
        "subjects": {subject.name: version(subject) for subject in subjects}, "cases": {},
    }  # fmt: skip


@contextlib.contextmanager
def a_room(options):
    # Whoever ends the rig ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="gateway-") as path:
        room = Room(path, options.nginx)
        try:
            yield room
        finally:
            end(room.process)


def keep(result, options):
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    common_options(parser, CASES)
    parser.add_argument("--h1load", metavar="BINARY", help="load with this instead (full and keepalive only)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=3, help="of each load; default: %(default)s")
    parser.add_argument("--max-foreign", type=float, default=0.05, help="CPUs for others; default: %(default)s")
    parser.add_argument("--patience", type=int, default=60, metavar="SECONDS",
                        help="how long each round waits for others to finish; default: %(default)s")  # fmt: skip
    parser.add_argument("--tries", type=int, default=3, help="of a round that was void; default: %(default)s")
    options = parser.parse_args()
    if options.print:
        print(table(json.loads(Path(options.print).read_text())))
        return
    cases = options.cases.split(",")
    if unknown := set(cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if options.h1load and (unfit := set(cases) - {"full-ecdsa", "full-rsa", "keepalive"}):
        parser.error(f"h1load is of no use for {', '.join(sorted(unfit))}")
    subjects = chosen_subjects(options)
    result = record(options, subjects, loader="h1load" if options.h1load else "sealane-lab",
                    max_foreign=options.max_foreign)  # fmt: skip
    with a_room(options) as room:
        load = H1load(options.h1load, room) if options.h1load else Lab(options.lab)
        for case in cases:
            result["cases"][case] = run_case(case, subjects, load, options, room)
            keep(result, options)
    print(table(result))


if __name__ == "__main__":
    main()
