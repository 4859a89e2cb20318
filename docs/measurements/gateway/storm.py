#!/usr/bin/env python3
"""Do clients that are already served notice a storm of new ones at three times what the lane can shake hands with?

    cargo build --release -p sealane -p sealane-lab
    cargo build --release -p sealane-interop --example hellos
    sudo docs/measurements/gateway/storm.py --out data/NAME.json

One lane on one core answers 1,000 requests per second (open loop, coordinated omission corrected) on 32 kept
connections, by turns alone and beside a storm. The storm is open, too: new connections, each of which sends a ClientHello
and never goes on, so that one core can ask for more than another can give. The lane's capacity is what it costs it in
CPU time to take a full handshake with one request and close, measured first, in the same run. Both clients share the
other core; the calm one goes first (SCHED_FIFO), so that what it measures is the server.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
SERVER_CORE, CLIENT_CORE = 0, 1
RATE, CONNECTIONS = 1000, 32


def cpu_seconds(pid):
    """Of a process; with 10 ms ticks, which over seconds is exact enough for a capacity."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Gateway:
    def __init__(self, binary, folder, port, key):
        kinds = {"ecdsa": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "rsa": ["rsa:2048"]}
        cert, secret = folder / f"{key}.pem", folder / f"{key}-key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", *kinds[key], "-nodes", "-days", "7", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", secret, "-out", cert],
                       check=True, capture_output=True)  # fmt: skip
        self.ca, self.address, self.admin = cert, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
        self.process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), binary, "respond", "--listen", self.address, "--cert", cert, "--key", secret,
             "--lanes", "1", "--admin", self.admin, "--body", "x" * 1024],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(1)

    def counter(self, name):
        page = subprocess.run(["curl", "-s", f"http://{self.admin}/metrics"], capture_output=True, text=True).stdout
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M))


def load(binary, gateway, seconds, connections, *more, first=()):
    command = [*first, "taskset", "-c", str(CLIENT_CORE), binary, "load", "--quiet", "--json", "--threads", "1", "--cpus",
               str(CLIENT_CORE), "--connections", str(connections), "--duration", f"{seconds}s", "--warmup", "1s", "--tls", "1.3",
               "--verify", "none", "--max-pressure", "100", *more, f"https://{gateway.address}/"]  # fmt: skip
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def capacity(options, gateway):
    """Full handshakes (with one request) per second of the lane's core."""
    before = cpu_seconds(gateway.process.pid)
    report = load(options.lab, gateway, 4, 32, "--handshake", "full")
    # The second of warm-up has cost as much as the others.
    return report["rate"] * 5 / (cpu_seconds(gateway.process.pid) - before)


def calm(options, gateway, seconds):
    report = load(options.lab, gateway, seconds, CONNECTIONS, "--rate", str(RATE), first=["chrt", "-f", "10"])
    tail = report["latency"]["percentiles"]
    return {"p50_ms": tail["p50"] / 1e6, "p99_ms": tail["p99"] / 1e6, "p99.9_ms": tail["p99.9"] / 1e6,
            "completed": report["completed"], "failed": report["failed"], "void": report["void"]}  # fmt: skip


def stormy(options, gateway, seconds, rate):
    names = {"accepted": "sealane_connections_accepted_total", "crypto_ns": "sealane_handshake_nanoseconds_total"}
    wild = subprocess.Popen(
        ["taskset", "-c", str(CLIENT_CORE), options.hellos, gateway.address, gateway.ca, str(rate), str(seconds + 3)],
        stdout=subprocess.PIPE, text=True)  # fmt: skip
    time.sleep(1)
    before, start = {k: gateway.counter(n) for k, n in names.items()}, time.monotonic()
    busy = cpu_seconds(gateway.process.pid)
    row = calm(options, gateway, seconds)
    took = time.monotonic() - start
    row |= {f"{k}_per_second": round((gateway.counter(n) - before[k]) / took) for k, n in names.items()}
    row["server_busy"] = round((cpu_seconds(gateway.process.pid) - busy) / took, 3)
    row["waiting"] = gateway.counter("sealane_hellos_waiting")
    return row | json.loads(wild.communicate()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release = ROOT / "target/release"
    parser.add_argument("--sealane", default=release / "sealane")
    parser.add_argument("--lab", default=release / "sealane-lab")
    parser.add_argument("--hellos", default=release / "examples/hellos")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=12)
    parser.add_argument("--keys", default="ecdsa,rsa")
    parser.add_argument("--times", type=float, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    result = {"machine": platform.platform(), "rate": RATE, "connections": CONNECTIONS, "keys": {}}
    with tempfile.TemporaryDirectory() as folder:
        for number, key in enumerate(options.keys.split(",")):
            gateway = Gateway(options.sealane, pathlib.Path(folder), 21443 + 10 * number, key)
            try:
                most = capacity(options, gateway)
                rows = []
                for turn in range(options.rounds):
                    alone = calm(options, gateway, options.seconds)
                    storm = stormy(options, gateway, options.seconds, options.times * most)
                    time.sleep(2)
                    rows.append({"alone": alone, "storm": storm, "ratio": storm["p99.9_ms"] / alone["p99.9_ms"],
                                 "times_capacity": round(storm["hellos_per_second"] / most, 2)})  # fmt: skip
                    print(key, turn, json.dumps(rows[-1]), flush=True)
            finally:
                gateway.process.terminate()
                gateway.process.wait()
            middle = {name: statistics.median(r[name]["p99.9_ms"] for r in rows) for name in ("alone", "storm")}
            result["keys"][key] = {"capacity_per_second": round(most), "median_p99.9_ms": middle,
                                   "ratio": statistics.median(r["ratio"] for r in rows), "rounds": rows}  # fmt: skip
            print(key, "capacity", round(most), middle, "ratio", result["keys"][key]["ratio"], flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
