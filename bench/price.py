#!/usr/bin/env python3
"""What a test pays for being explained: the processor time of the threads that watch it, beside that of its workers, on each host.

Threads are told apart by their names: workers carry the load, and all others count, sample and report. What a worker itself does for the
explanation, time stamps and `TCP_INFO` of a sample of its work, is part of its own time.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterable

from hosts import Failed, Lab
from memory import descendants

AIM = 0.01
WORKER = "worker"
# Each at the highest rate that it reaches; the schedule of the last one leaves time.
WORKLOADS = [
    ("TCP stream", ["tcp"]),
    ("TCP transactions", ["tcp", "--test", "rr", "--flows", "20"]),
    ("TCP stream, 256 connections", ["tcp", "--flows", "256"]),
    ("UDP stream", ["udp"]),
    ("HTTP keep-alive", ["http", "--connections", "20"]),
    ("HTTP, 1,000 connections", ["http", "--connections", "1000"]),
    ("UDP at 100 Mbit/s", ["udp", "--rate", "100M"]),
]


def spent_ns(agents: Iterable[int]) -> dict[tuple[int, str], int]:
    """The processor time of the threads of each agent, by their names."""
    spent: dict[tuple[int, str], int] = {}
    for agent in agents:
        for task in Path(f"/proc/{agent}/task").glob("*"):
            with contextlib.suppress(OSError):
                name = (task / "comm").read_text().strip()
                spent[agent, name] = spent.get((agent, name), 0) + int((task / "schedstat").read_text().split()[0])
    return spent


def agents_below(pid: int) -> list[int]:
    found = []
    for process in descendants(pid):
        with contextlib.suppress(OSError):
            if b"agent" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[1:2]:
                found.append(process)
    return found


def start(lab: Lab, words: list[str], seconds: int) -> subprocess.Popen:
    times = ["--lab", lab.name, "--warmup", "1s", "--duration", f"{seconds}s", "--rounds", "1", "--quiet", "--json"]
    return subprocess.Popen([lab.fathom, *words, *times], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def host_of(lab: Lab, agent: int) -> str:
    """The host in whose network namespace an agent runs."""
    namespace = Path(f"/proc/{agent}/ns/net").readlink()
    return next(host for host in lab.address if Path(f"/proc/{lab.witness(host)}/ns/net").readlink() == namespace)


def watched(lab: Lab, words: list[str], seconds: int) -> dict[str, tuple[float, float]]:
    """Of each host: the time of its workers and that of its other threads, in cores."""
    # Who looks shares the cores with the test, and needs seconds to look at hundreds of threads.
    test = start(lab, words, seconds + 12)
    try:
        # Past the preparation and the warm-up, and over before the end.
        time.sleep(3)
        agents = {agent: host_of(lab, agent) for agent in agents_below(test.pid)}
        before, began = spent_ns(agents), time.monotonic()
        time.sleep(seconds)
        after, span_ns = spent_ns(agents), (time.monotonic() - began) * 1e9
    finally:
        test.wait()
    if not agents or not all(any(of == agent for of, _ in after) for agent in agents):
        raise Failed(f"{' '.join(words)} ended before it was looked at")
    cores = {}
    for agent, host in agents.items():
        grown = {name: (now - before.get((of, name), 0)) / span_ns for (of, name), now in after.items() if of == agent}
        cores[host] = (grown.get(WORKER, 0.0), sum(spent for name, spent in grown.items() if name != WORKER))
    return cores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=8, help="length of each look (default: 8)")
    given = parser.parse_args()
    print("| workload | host | workers, cores | other threads, share of a core | aim |")
    print("|---|---|---|---|---|")
    with Lab("bench-price") as lab:
        for name, words in WORKLOADS:
            for host, (workers, others) in sorted(watched(lab, words, given.seconds).items()):
                kept = "kept" if others < AIM else "**MISSED**"
                print(f"| {name} | {host} | {workers:.2f} | {others:.2%} | < {AIM:.0%}: {kept} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
