#!/usr/bin/env python3
"""Compares paths whose difference is known, again and again, and counts how often the 95 % interval contains it.

An interval that is too narrow misses the truth more often than it says. Its width stands beside, since one that holds everything
never misses. What is known: a policer passes half of the offered rate, and a device adds the delay that was set to what the same
device costs without it.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Callable

from hosts import fathom_program

TARGET_SHARE = 0.90
# A rate that a busy machine can send too, so that the policer alone decides about the ratio.
OFFERED_PER_SEC = 2000
POLICER = f"policer:{OFFERED_PER_SEC // 2},16"
DELAY_NS = 50_000


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def minus(self, other: "Interval") -> "Interval":
        """The difference of two independent values, each in the middle of its interval."""
        middle = (self.low + self.high - other.low - other.high) / 2
        half = math.hypot((self.high - self.low) / 2, (other.high - other.low) / 2)
        return Interval(middle - half, middle + half)

    def contains(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def compared(words: list[str], metric: str, of: str, given: argparse.Namespace) -> Interval:
    """The interval of a ratio or of a difference in one comparison."""
    times = ["--rounds", str(given.rounds), "--duration", f"{given.seconds}s", "--json", "--quiet"]
    with tempfile.TemporaryDirectory(prefix="fathom-bench-") as folder:
        command = [fathom_program(), "path", *words, *times]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    if finished.returncode not in (0, 10, 12):
        raise SystemExit(f"{' '.join(command)} ended with {finished.returncode}: {finished.stderr[-500:]}")
    arms = (arm for comparison in json.loads(finished.stdout)["comparisons"] for arm in comparison["arms"])
    values = (value for arm in arms if not arm["is_null"] for value in arm["values"])
    value = next(value for value in values if value["metric"] == metric)
    confidence = value.get(of, {}).get("confidence")
    if not confidence:
        raise SystemExit(f"{' '.join(command)} has no interval of {metric}: {value['text']}")
    return Interval(confidence["low"], confidence["high"])


def policed(given: argparse.Namespace) -> Interval:
    words = ["udp", "--device", POLICER, "--rate", f"{OFFERED_PER_SEC}pps"]
    return compared(words, "received_per_sec", "ratio", given)


def delayed(given: argparse.Namespace) -> Interval:
    def added(device: str) -> Interval:
        return compared(["tcp", "--test", "rr", "--device", device], "latency_ns_p50", "difference", given)

    return added(f"impair:delay={DELAY_NS}ns").minus(added("impair"))


@dataclass(frozen=True)
class Case:
    name: str
    truth: float
    interval: Callable[[argparse.Namespace], Interval]


CASES = [
    Case("a policer at half the rate: ratio of what arrives", 0.5, policed),
    # Once each way.
    Case("a delay of 50 µs each way: ns that it adds to a transaction", 2.0 * DELAY_NS, delayed),
]


def main() -> int:
    parser = argparse.ArgumentParser(description="how often intervals of fathom path contain what is true")
    parser.add_argument("--runs", type=int, default=100, help="runs of each case (default: 100)")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a comparison (default: 6)")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured time of a test in a comparison (default: 2)")
    parser.add_argument("--only", default="", help="the cases whose name contains this text")
    given = parser.parse_args()
    has_failed = False
    for case in (case for case in CASES if given.only in case.name):
        intervals = []
        for run in range(given.runs):
            intervals.append(case.interval(given))
            print(f"\r{case.name}: {run + 1} of {given.runs}", end="", file=sys.stderr)
        print(file=sys.stderr)
        covered = sum(interval.contains(case.truth) for interval in intervals)
        below = sum(interval.high < case.truth for interval in intervals)
        width = statistics.median((interval.high - interval.low) / 2 for interval in intervals)
        middle = statistics.median((interval.high + interval.low) / 2 for interval in intervals)
        is_enough = covered >= TARGET_SHARE * given.runs
        has_failed |= not is_enough
        print(f"{case.name}: {case.truth:g} is in {covered} of {given.runs} intervals{'' if is_enough else ', too few'};")
        print(f"  {below} were below it, {given.runs - covered - below} above; median {middle:.4g} ± {width:.2g}")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
