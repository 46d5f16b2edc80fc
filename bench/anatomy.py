#!/usr/bin/env python3
"""Whether the parts of a transaction are those that the kernel's own trace tells, without a delay and with planted ones.

Two parts have a place in the kernel that its tracepoints show: the local queue (from `net_dev_queue` to `net_dev_start_xmit` of the same packet) and
the wait for a core (from `sched_wakeup` to the `sched_switch` to the same thread). They are read from an instance of tracefs of our own, so that other
tracing goes on. The trace tells what was really planted: a token bucket and a thread with a timer are later than they were asked to be.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Iterator, Optional

from hosts import CORES, GENERATOR, TARGET, Failed, Lab

AIM_NS = 5_000
# Where each part begins and ends.
EVENTS = {
    "local-queue": ("net/net_dev_queue", "net/net_dev_start_xmit"),
    "core-wait": ("sched/sched_wakeup", "sched/sched_switch"),
}
BUFFER_KB = 40_000
LATE_THREAD = Path(__file__).with_name("late_thread.py")
# One transaction each 96 µs or 144 µs, of which the queue has the part that is missing.
BUCKETS = ["4mbit", "3mbit"]
DELAYS_US = [50, 100]
LINE = re.compile(r"-(?P<pid>\d+)\s+\[\d+\].*?\s(?P<at>\d+\.\d+): (?P<event>\w+): (?P<rest>.*)")


@dataclass(frozen=True)
class Planted:
    name: str
    part: str
    side: str
    host: str
    bucket: Optional[str] = None
    delay_us: Optional[int] = None


ROWS = [
    Planted("local queue", "local-queue", "initiator", GENERATOR),
    *(Planted(f"local queue, token bucket of {rate}", "local-queue", "initiator", GENERATOR, bucket=rate) for rate in BUCKETS),
    # Without a thread in the way there is no such row: the kernel counts no wait on an idle core, while its trace shows how that core wakes up.
    *(Planted(f"wait for a core, late by {us} µs", "core-wait", "responder", TARGET, delay_us=us) for us in DELAYS_US),
]


class Trace:
    """An instance of tracefs with the events of one part, while it is entered."""

    def __init__(self, events: tuple[str, str]):
        self.events = events
        self.root = Path(tempfile.mkdtemp(prefix="fathom-trace-"))
        self.folder = self.root / "instances" / f"fathom-{self.root.name}"

    def __enter__(self) -> "Trace":
        mounted = subprocess.run(["mount", "-t", "tracefs", "tracefs", self.root], stderr=subprocess.PIPE, text=True)
        if mounted.returncode:
            self.root.rmdir()
            raise Failed(f"the kernel's trace is not to be had: {mounted.stderr.strip()}")
        try:
            self.folder.mkdir()
            (self.folder / "trace_clock").write_text("mono")
            (self.folder / "buffer_size_kb").write_text(str(BUFFER_KB))
            self.switch("1")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.switch("0")
            self.folder.rmdir()
        subprocess.run(["umount", self.root], check=True)
        self.root.rmdir()

    def switch(self, to: str):
        for event in self.events:
            (self.folder / "events" / event / "enable").write_text(to)

    def lines(self) -> Iterator[re.Match]:
        self.switch("0")
        with (self.folder / "trace").open() as trace:
            yield from filter(None, map(LINE.search, trace))


def queued(lines: Iterator[re.Match], threads: set[str]) -> list[tuple[float, float]]:
    """For each sampled packet of the threads: how long its transaction took, which ends as the next one begins, and how long it was in the queue, in
    nanoseconds."""
    began, last, times = {}, {}, []
    for line in lines:
        packet, at_ns = re.search(r"skbaddr=(\S+)", line["rest"]), float(line["at"]) * 1e9
        if line["event"] == "net_dev_queue" and line["pid"] in threads:
            if line["pid"] in last:
                begun_ns, time_ns = last.pop(line["pid"])
                times.append((at_ns - begun_ns, time_ns))
            began[packet[1]] = (line["pid"], at_ns)
        elif line["event"] == "net_dev_start_xmit" and packet[1] in began:
            pid, begun_ns = began.pop(packet[1])
            # Only packets whose stamps were asked for are in the sample.
            if not re.search(r"tx_flags=0\b", line["rest"]):
                last[pid] = (begun_ns, at_ns - begun_ns)
    return times


def waited(lines: Iterator[re.Match], threads: set[str]) -> list[tuple[float, float]]:
    """How long the threads waited for a core after each wake-up, in nanoseconds: as the length to order by, since it makes most of it, and as the time."""
    woken, times = {}, []
    for line in lines:
        is_woken = line["event"] == "sched_wakeup"
        thread = re.search(r" pid=(\d+)" if is_woken else r" next_pid=(\d+)", line["rest"])
        if thread is None or thread[1] not in threads:
            continue
        if is_woken:
            woken[thread[1]] = float(line["at"])
        elif thread[1] in woken:
            times.append(((float(line["at"]) - woken.pop(thread[1])) * 1e9,) * 2)
    return times


def usual(times: list[tuple[float, float]]) -> float:
    """The mean of the middle tenth by the whole length, as fathom takes it."""
    if len(times) < 100:
        raise Failed(f"the trace has {len(times)} times only")
    times.sort()
    n = len(times)
    return mean(time for _, time in times[n * 9 // 20 : n * 11 // 20 + 1])


def workers(lab: Lab, host: str) -> set[str]:
    """The threads that carry the load on a host."""
    namespace = subprocess.run(lab.words(host, ["readlink", "/proc/self/ns/net"]), capture_output=True, text=True, check=True).stdout.strip()
    found = set()
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().strip() == "worker" and str((task / "ns/net").readlink()) == namespace:
                found.add(task.name)
    return found


@contextlib.contextmanager
def planted(lab: Lab, row: Planted) -> Iterator[None]:
    """The delay of a row while it is entered."""
    program = None
    if row.bucket:
        # One packet at a time.
        bucket = ["tbf", "rate", row.bucket, "burst", "100", "mtu", "100", "limit", "10000"]
        subprocess.run(lab.words(row.host, ["tc", "qdisc", "replace", "dev", "eth0", "root", *bucket]), check=True)
    if row.delay_us:
        # In a lab of two hosts, `rr` has its initiator on the first core and its responder on the second one.
        words = [sys.executable, str(LATE_THREAD), str(row.delay_us), str(CORES[row.host])]
        program = subprocess.Popen([lab.fathom, "lab", "exec", lab.name, row.host, *words])
    try:
        yield
    finally:
        if program:
            program.terminate()
            program.wait()
        if row.bucket:
            subprocess.run(lab.words(row.host, ["tc", "qdisc", "del", "dev", "eth0", "root"]), check=True)


def measured(lab: Lab, row: Planted, seconds: int) -> tuple[float, float]:
    """The part that fathom reports, and that of the trace, in nanoseconds."""
    words = ["udp", "--lab", lab.name, "--test", "rr", "--warmup", "500ms", "--duration", f"{seconds}s", "--rounds", "1", "--json", "--quiet"]
    with planted(lab, row), Trace(EVENTS[row.part]) as trace:
        test = subprocess.Popen([lab.fathom, *words], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5 + seconds / 2)
        threads = workers(lab, row.host)
        try:
            run = json.loads(test.communicate()[0])
        except json.JSONDecodeError as error:
            raise Failed(f"fathom printed no result: {error}") from error
        times = (queued if row.part == "local-queue" else waited)(trace.lines(), threads)
    parts = (run["tests"][0].get("anatomy") or {}).get("parts", [])
    told = [part["median_ns"] for part in parts if (part["part"], part.get("side")) == (row.part, row.side)]
    if not told:
        raise Failed(f"there is no part {row.part}")
    return told[0], usual(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=2, help="measured time of each row")
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured")
    options = parser.parse_args()
    print("| part | fathom | trace | difference | aim |\n|---|---|---|---|---|")
    with Lab("anatomy") as lab:
        for row in ROWS:
            for _ in range(options.rounds):
                try:
                    told, traced = measured(lab, row, options.seconds)
                except Failed as failure:
                    print(f"| {row.name} | not measured: {failure} | | | |", flush=True)
                    continue
                verdict = "kept" if abs(told - traced) <= AIM_NS else "**LOST**"
                print(f"| {row.name} | {told / 1000:.1f} µs | {traced / 1000:.1f} µs | {(told - traced) / 1000:+.1f} µs | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
