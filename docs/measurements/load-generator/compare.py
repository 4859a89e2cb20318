#!/usr/bin/env python3
"""Compares sealane-lab load with wrk, h1load and wrk2 on this machine: interleaved pairs, CPU time by rusage.

usage: compare.py OUT.json LAB SERVER [--h1load PATH] [--wrk2 PATH] [--pairs N] [--seconds S]

LAB is the sealane-lab binary; SERVER a sealane binary (`sealane respond` answers itself, so that the client is the
limit). The server is pinned to CPU 0, the client to CPU 1. Everything stays on loopback.
"""
import argparse, json, os, re, resource, shutil, socket, statistics, subprocess, tempfile, threading, time

SERVER_PORT, STALL_PORT = 18701, 18702


def timed(command):
    """Runs a client on CPU 1: its output, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["taskset", "-c", "1", *command], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + ("" if "--json" in command else done.stderr), cpu


def pressure():
    with open("/proc/pressure/cpu") as f:
        return int(re.search(r"total=(\d+)", f.readline()).group(1))


def lab(args, url, seconds, extra):
    out, cpu = timed([args.lab, "load", url, "-t1", "-c64", "-w", "0s", "-d", f"{seconds}s", "--verify", "signature",
                      "--max-pressure", "101", "--json", *extra])
    report = json.loads(out)
    assert report["failed"] == 0, report["failures"]
    return {"rate": report["rate"], "cpu_us": cpu * 1e6 / report["completed"], "server_us": None,
            "operations": report["completed"]}


def wrk(args, url, seconds):
    out, cpu = timed(["wrk", "-t1", "-c64", f"-d{seconds}s", url])
    n = int(re.search(r"(\d+) requests in", out).group(1))
    return {"rate": float(re.search(r"Requests/sec:\s*([\d.]+)", out).group(1)), "cpu_us": cpu * 1e6 / n, "operations": n}


def h1load(args, url, seconds, extra):
    out, cpu = timed([args.h1load, "-t", "1", "-c", "64", "-d", str(seconds), "-r", "1", *extra, url])
    rows = [line.split() for line in out.splitlines() if re.match(r"\s*\d+\s+\d+\s+\d+", line)]
    n = int(rows[-1][2])  # total requests so far
    return {"rate": n / seconds, "cpu_us": cpu * 1e6 / n, "operations": n}


def pairs(name, ours, theirs, n):
    rows = []
    for i in range(n):
        start, at = pressure(), time.monotonic()
        order = [("ours", ours), ("theirs", theirs)]
        row = {who: run() for who, run in (order if i % 2 == 0 else order[::-1])}
        row["pressure_percent"] = (pressure() - start) / 1e4 / (time.monotonic() - at)
        rows.append(row)
        print(name, {k: (round(v["rate"]), round(v["cpu_us"], 2)) for k, v in row.items() if isinstance(v, dict)},
              "pressure", round(row["pressure_percent"], 1), flush=True)
    rate = [r["ours"]["rate"] / r["theirs"]["rate"] for r in rows]
    cpu = [r["theirs"]["cpu_us"] / r["ours"]["cpu_us"] for r in rows]
    summary = {"rate_ratio": [min(rate), statistics.median(rate), max(rate)],
               "cpu_ratio": [min(cpu), statistics.median(cpu), max(cpu)]}
    for who in ("ours", "theirs"):
        summary[who] = {k: statistics.median(r[who][k] for r in rows) for k in ("rate", "cpu_us")}
    print(name, json.dumps(summary), flush=True)
    return {"pairs": rows, "summary": summary}


def stalling_server(stop):
    """Plain HTTP on threads: stands still for 500 ms at the beginning of every 5 s."""
    listener = socket.create_server(("127.0.0.1", STALL_PORT), backlog=64)
    listener.settimeout(0.2)
    began = time.monotonic()

    def serve(sock):
        sock.settimeout(30)
        try:
            while data := sock.recv(4096):
                at = (time.monotonic() - began) % 5
                if at < 0.5:
                    time.sleep(0.5 - at)
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" * data.count(b"\r\n\r\n"))
        except OSError:
            pass

    while not stop.is_set():
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def agreement(args):
    """wrk2's latencies and ours, on the same stalls: milliseconds."""
    stop = threading.Event()
    threading.Thread(target=stalling_server, args=(stop,), daemon=True).start()
    time.sleep(0.3)
    url, seconds, rate, conns = f"http://127.0.0.1:{STALL_PORT}/", 30, 200, 4
    out, _ = timed([args.lab, "load", url, "-t1", f"-c{conns}", "-w", "10s", "-d", f"{seconds - 10}s", "--rate", str(rate),
                    "--max-pressure", "101", "--max-lag", "1h", "--json"])
    r = json.loads(out)
    get = lambda d: {k: v / 1e6 for k, v in d["percentiles"].items()} | {"max": d["max"] / 1e6}
    ours = {"corrected": get(r["latency"]), "uncorrected": get(r["latency_uncorrected"])}
    out, _ = timed([args.wrk2, "-t1", f"-c{conns}", f"-d{seconds}s", f"-R{rate}", "-L", "-U", url])
    theirs, part = {}, None
    for line in out.splitlines():
        if "Recorded Latency" in line or "HdrHistogram" in line:
            part = "uncorrected" if "Uncorrected" in line or "measured without" in line else "corrected"
        m = re.match(r"\s*([\d.]+)%\s+([\d.]+)(us|ms|s|m)\s*$", line)
        if m and part:
            scale = {"us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4}[m.group(3)]
            theirs.setdefault(part, {})[f"p{float(m.group(1)):g}"] = float(m.group(2)) * scale
    stop.set()
    result = {"ours": ours, "wrk2": theirs, "wrk2_raw": out[:6000]}
    print(json.dumps({"ours": ours, "wrk2": theirs}, indent=1), flush=True)
    return result


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out"), p.add_argument("lab"), p.add_argument("server")
    p.add_argument("--h1load"), p.add_argument("--wrk2")
    p.add_argument("--pairs", type=int, default=8), p.add_argument("--seconds", type=int, default=3)
    args = p.parse_args()
    url = f"https://127.0.0.1:{SERVER_PORT}/"
    result = {"machine": open("/proc/cpuinfo").read().split("model name")[1].split("\n")[0].strip("\t: "),
              "kernel": os.uname().release, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as tmp:
        cert, key = f"{tmp}/cert.pem", f"{tmp}/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", cert, "-days", "30", "-subj", "/CN=localhost"], check=True, capture_output=True)
        server = subprocess.Popen(["taskset", "-c", "0", args.server, "respond", "--listen", f"127.0.0.1:{SERVER_PORT}", "--cert", cert,
                                   "--key", key, "--status", "200", "--body", "hello"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1)
            s = args.seconds
            pin = ["--cpus", "1"]
            if shutil.which("wrk"):
                result["keep_alive_wrk"] = pairs("keep-alive", lambda: lab(args, url, s, pin), lambda: wrk(args, url, s), args.pairs)
            if args.h1load:
                full = [*pin, "--handshake", "full", "--tls", "1.3"]
                result["full_h1load"] = pairs("full", lambda: lab(args, url, s, full),
                                              lambda: h1load(args, url, s, ["--tls-ver", "TLS1.3"]), args.pairs)
        finally:
            server.terminate()
            server.wait()
    if args.wrk2:
        result["stalls_wrk2"] = agreement(args)
    with open(args.out, "w") as f:
        json.dump(result, f, indent=1)


main()
