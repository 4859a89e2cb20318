#!/usr/bin/env python3
"""Counts LOCK-prefixed instructions of a gateway per operation, exactly, under callgrind.

    count_lock_instructions.py SEALANE LAB CERT KEY full|resumed|keepalive [N]

Runs the gateway (`sealane respond`, one lane) twice, for N and for 3N operations; the difference is what operations
cost, without start-up. Needs valgrind and objdump. Output: one JSON document.
"""
import collections
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time


def locked(path):
    """Addresses of LOCK-prefixed (and implicitly locked xchg) instructions, with the function they are in."""
    found, function = {}, ""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        head = re.match(r"^[0-9a-f]+ <(.*)>:", line)
        if head:
            function = head[1]
            continue
        code = re.match(r"^\s+([0-9a-f]+):\s+(.*)", line)
        if code and (code[2].startswith("lock ") or (code[2].startswith("xchg") and "(" in code[2])):
            found[int(code[1], 16)] = function
    return found


def run(sealane, lab, cert, key, case, operations):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    out = tempfile.mktemp(prefix="callgrind.")
    server = subprocess.Popen(
        ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no",
         f"--callgrind-out-file={out}", sealane, "respond", "--listen", f"127.0.0.1:{port}", "--cert", cert, "--key",
         key, "--status", "200", "--body", "hello", "--lanes", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)
        mode = [] if case == "keepalive" else ["--handshake", case]
        said = subprocess.run(
            [lab, "load", f"https://localhost:{port}/", *mode, "--tls", "1.3", "--groups", "X25519", "--verify", "none",
             "-t", "1", "-c", "1", "-n", str(operations), "-w", "0s", "--json"], capture_output=True, text=True)
        if said.returncode not in (0, 3):
            sys.exit(f"the load failed: {said.stderr[-500:]}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    counts, skip, binary, instructions = collections.Counter(), False, "", 0
    with open(out) as lines:
        for line in lines:
            if line.startswith("ob="):
                binary = line[3:].strip()
            elif line.startswith("calls="):
                skip = True
            elif line.startswith("0x"):
                if skip:
                    skip = False
                    continue
                parts = line.split()
                if len(parts) >= 3:
                    counts[binary, int(parts[0], 16)] += int(parts[2])
                    instructions += int(parts[2])
    os.unlink(out)
    return counts, instructions


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    sealane, lab, cert, key, case = sys.argv[1:6]
    n = int(sys.argv[6]) if len(sys.argv) > 6 else 100
    few, start = run(sealane, lab, cert, key, case, n)
    many, total = run(sealane, lab, cert, key, case, 3 * n)
    tables, by_function = {}, collections.Counter()
    for (binary, address), count in many.items():
        if not os.path.exists(binary):
            continue
        if binary not in tables:
            tables[binary] = locked(binary)
        functions = tables[binary]
        if address in functions:
            by_function[functions[address]] += count - few[binary, address]
    print(json.dumps({
        "case": case,
        "operations": 2 * n,
        "instructions_per_operation": round((total - start) / (2 * n)),
        "lock_instructions_per_operation": round(sum(by_function.values()) / (2 * n), 2),
        "by_function": {f: round(c / (2 * n), 2) for f, c in by_function.most_common(12)},
    }, indent=2))


main()
