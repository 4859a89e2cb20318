#!/usr/bin/env python3
"""What an operation costs with two lanes and with one, at the same rate, by turns; the client is wherever there is room."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from subjects import BODY, cpu_ns, end, free_port, wait_for

# At rates that one lane holds.
CASES = {"full": ["--handshake", "full", "--rate", "1200"], "keepalive": ["--rate", "8000"]}


class Respond:
    """`sealane respond` with so many lanes."""

    def __init__(self, binary, folder, lanes):
        self.name, self.port, self.output = f"{lanes} lanes", free_port(), folder / f"{lanes}.log"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [binary, "respond", "--listen", f"127.0.0.1:{self.port}", "--cert", folder / "crt", "--key", folder / "key",
                 "--status", "200", "--body", BODY, "--lanes", str(lanes)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # fmt: skip
        wait_for(self.port, self)


def cost(server, lab, more, seconds):
    before = cpu_ns([server.process.pid])
    command = [lab, "load", "--quiet", "--json", "--threads", "1", "--cpus", "off", "--connections", "32", "--tls", "1.3",
               "--duration", f"{seconds}s", "--warmup", "0s", "--groups", "X25519", "--max-pressure", "100",
               "--ciphers", "TLS_AES_128_GCM_SHA256", "--verify", "none", *more, f"https://127.0.0.1:{server.port}/"]  # fmt: skip
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    if report["failed"] or not report["completed"]:
        raise SystemExit(f"{server.name}: {report['failed']} of {report['completed']} operations failed")
    return (cpu_ns([server.process.pid]) - before) / 1e3 / report["completed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sealane", metavar="BINARY", default="target/dist/sealane", help="default: %(default)s")
    parser.add_argument("--lab", metavar="BINARY", default="target/release/sealane-lab", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=3, help="of each load; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="where the raw figures go")
    options = parser.parse_args()
    figures = {case: {"1": [], "2": []} for case in CASES}
    with tempfile.TemporaryDirectory(prefix="lanes-") as path:
        folder = Path(path)
        subprocess.run(["openssl", "req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-keyout", folder / "key", "-out", folder / "crt"],
                       check=True, capture_output=True)  # fmt: skip
        servers = {}
        try:
            for lanes in ("1", "2"):
                servers[lanes] = Respond(options.sealane, folder, lanes)
            for case, more in CASES.items():
                for number in range(options.rounds):
                    for lanes in ("1", "2") if number % 2 == 0 else ("2", "1"):
                        figures[case][lanes].append(round(cost(servers[lanes], options.lab, more, options.seconds), 1))
                        time.sleep(0.2)
                one, two = figures[case]["1"], figures[case]["2"]
                ratio = statistics.median(b / a for a, b in zip(one, two))
                print(f"{case}: {statistics.median(one):.1f} µs with one lane, {statistics.median(two):.1f} with two; {ratio:.2f}")
        finally:
            for server in servers.values():
                end(server.process)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
