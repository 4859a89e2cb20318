#!/usr/bin/env python3
"""What a request costs, all subjects at once on the one core: what disturbs one disturbs all.

run.py measures one subject after the other; where a neighbour on the host takes a part of the core's speed for some
seconds, that falls on whoever is measured then. Here all servers are loaded at the same time, pinned to the same core, and
the kernel gives it to each in turn for some milliseconds, so that a slow second is slow for all. They also disturb each
other's caches, alike. Where a process comes to lie in memory makes a difference of some per cent to it: each round starts all
of them anew, each time in another order. What comes out is the CPU time of each per operation, and Sealane's part of
each peer's.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from run import CASES, Lab, a_room, chosen_subjects, common_options, keep, record
from subjects import Subject, cpu_ns

FITTING = ("full-ecdsa", "full-rsa", "resumed", "keepalive")


def one_round(case, subjects, load, seconds, options):
    """µs per operation of each subject, while all are loaded."""
    kind = {"full-ecdsa": ["--handshake", "full"], "full-rsa": ["--handshake", "full"],
            "resumed": ["--handshake", "resumed"], "keepalive": []}[case]  # fmt: skip
    before = {subject.name: cpu_ns(subject.pids()) for subject in subjects}
    loads = {
        subject.name: subprocess.Popen(load.command(subject, seconds, options.connections, *kind),
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for subject in subjects
    }  # fmt: skip
    reports = {name: load.read(process.communicate()[0]) for name, process in loads.items()}
    row = {}
    for subject in subjects:
        report = reports[subject.name]
        spent = (cpu_ns(subject.pids()) - before[subject.name]) / 1e3
        row[subject.name] = {"value": spent / max(report["completed"], 1), "operations": report["completed"],
                             "failed": report["failed"], "share": spent / 1e6 / seconds}  # fmt: skip
        shakes = report["handshakes"]
        if shakes and (made := shakes["full"] + shakes["resumed"]):
            row[subject.name]["tickets_per_handshake"] = round(shakes["tickets"] / made, 2)
    return row


def whole_round(case, order, load, options, room):
    """The subjects started, warmed, measured and stopped."""
    try:
        for subject in order:
            subject.start(room, *CASES[case][:3], options.logs)
        one_round(case, order, load, 1, options)
        return one_round(case, order, load, options.seconds, options)
    finally:
        for subject in order:
            subject.stop()


def is_good(case, row):
    """Nothing failed, and everybody sent the tickets that were asked for."""
    wanted = CASES[case][2]
    return not any(c["failed"] or abs(c.get("tickets_per_handshake", wanted) - wanted) > 0.2 for c in row.values())


def table(result):
    """Markdown: medians, and Sealane's part of each peer's figure, round by round, with its quartiles."""
    names = list(result["subjects"])
    head = ["", *names] + [f"sealane ÷ {name}" for name in names if name != "sealane"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for case, rows in result["cases"].items():
        good = [row for row in rows if is_good(case, row)]
        if not good:
            lines.append(f"| {CASES[case][4]} ({CASES[case][3]}) | void |")
            continue
        cells = [f"{CASES[case][4]} ({CASES[case][3]})"]
        cells += [f"{statistics.median(row[name]['value'] for row in good):.1f}" for name in names]
        for name in names:
            if name != "sealane":
                ratios = sorted(row["sealane"]["value"] / row[name]["value"] for row in good)
                low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
                cells.append(f"{statistics.median(ratios):.3f} ({low:.3f}–{high:.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    common_options(parser, FITTING)
    parser.add_argument("--sealane-old", metavar="BINARY", help="another build of it, as one more subject")
    parser.add_argument("--no-debian", dest="debian", action="store_false", help="without Debian's two")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=4, help="of each round; default: %(default)s")
    parser.add_argument("--connections", type=int, default=16, help="to each subject; default: %(default)s")
    options = parser.parse_args()
    if options.print:
        print(table(json.loads(Path(options.print).read_text())))
        return
    cases = options.cases.split(",")
    if unknown := set(cases) - set(FITTING):
        parser.error(f"not for this: {', '.join(sorted(unknown))}")
    if not options.sealane:
        parser.error("--sealane names the gateway, with which all are compared")
    subjects = [s for s in chosen_subjects(options) if options.debian or not s.name.endswith("-debian")]
    if options.sealane_old:
        subjects.insert(1, Subject("sealane-old", "sealane", options.sealane_old))
    result = record(options, subjects, connections=options.connections)
    with a_room(options) as room:
        load = Lab(options.lab)
        for case in cases:
            rows = result["cases"][case] = []
            for number in range(options.rounds):
                turn = number // 2 % len(subjects)
                order = subjects[turn:] + subjects[:turn]
                row = whole_round(case, order if number % 2 == 0 else order[::-1], load, options, room)
                rows.append(row)
                note = "  ".join(f"{name} {cell['value']:.1f} ({cell['share']:.2f})" for name, cell in row.items())
                print(f"{case:10} round {number + 1}  {note}{'' if is_good(case, row) else '  void'}", file=sys.stderr)
                keep(result, options)
    print(table(result))


if __name__ == "__main__":
    main()
