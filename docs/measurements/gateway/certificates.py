#!/usr/bin/env python3
"""What 10,000 certificates cost beside one: CPU per full handshake, CPU to start, memory.

usage: certificates.py SEALANE SEALANE-LAB NUMBER      (needs Python's `cryptography`)
"""

import datetime
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


def pair(folder, name):
    """A certificate for `name` that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=365))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    (folder / f"{name}.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(PEM))
    file = folder / f"{name}.key"
    file.write_bytes(key.private_bytes(PEM, PKCS8, serialization.NoEncryption()))
    file.chmod(0o600)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder, program, label, names):
    """One lane on core 0 with these certificates; the process and its port."""
    port = free_port()
    certificates = ",\n".join(f'{{ cert = "{n}.pem", key = "{n}.key" }}' for n in names)
    (folder / f"{label}.toml").write_text(
        f'lanes = 1\n[[listener]]\naddress = "127.0.0.1:{port}"\ntls.certificates = [\n{certificates}\n]\n'
        '[[host]]\nnames = ["*"]\nrespond = { status = 200, body = "ok" }\n'
    )
    command = ["taskset", "-c", "0", program, "serve", "-c", f"{label}.toml"]
    with (folder / f"{label}.err").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            time.sleep(0.1)
    sys.exit((folder / f"{label}.err").read_text())


def spent(process):
    """Nanoseconds of CPU of all its threads."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def pss(process):
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def load(lab, port, names):
    """Full handshakes in two seconds from core 1, each for one of the names."""
    command = ["taskset", "-c", "1", lab, "load", "--quiet", "--json", "--threads", "1", "--connections", "32"]
    command += ["--duration", "2s", "--warmup", "0s", "--tls", "1.3", "--groups", "X25519", "--verify", "none"]
    command += ["--max-pressure", "100", "--handshake", "full", "--sni", ",".join(names), f"https://127.0.0.1:{port}/"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["handshakes"]["full"]


def main():
    program, lab, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    names = [f"h{i}.example" for i in range(number)]
    asked = {"one": [names[number // 2]], "many": names[:: max(1, number // 500)]}
    out = {"n": number, "rounds": [], "start_cpu_ms": {}, "pss_kib": {}}
    with tempfile.TemporaryDirectory(prefix="certificates-") as path:
        folder = Path(path)
        for name in names:
            pair(folder, name)
        running = {}
        try:
            for label, own in (("one", asked["one"]), ("many", names)):
                running[label] = start(folder, program, label, own)
                process = running[label][0]
                out["start_cpu_ms"][label] = round(spent(process) / 1e6)
                out["pss_kib"][label] = pss(process)
            for turn in range(5):
                row = {}
                for label in ("one", "many") if turn % 2 == 0 else ("many", "one"):
                    process, port = running[label]
                    before = spent(process)
                    handshakes = load(lab, port, asked[label])
                    row[label] = round((spent(process) - before) / 1e3 / handshakes, 1)
                out["rounds"].append(row)
        finally:
            for process, _ in running.values():
                process.terminate()
                process.wait()
    out["ratio"] = round(statistics.median(row["many"] / row["one"] for row in out["rounds"]), 3)
    print(json.dumps(out))


main()
