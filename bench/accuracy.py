#!/usr/bin/env python3
"""Checks what fathom reports against the counters of the receiving interface, which fathom does not read for it.

Counts are compared over a whole run. Rates are compared where a rate was asked for, in the middle of a run: flat out they
drift, and two windows that are not the same would differ for that alone.
"""

import argparse
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional

import tools
from hosts import GENERATOR, TARGET, Counters, Lab

WITHIN = 0.01
# Ethernet, IPv4 and TCP with time stamps; Ethernet, IPv4 and UDP. A veth counts a segment of many packets as one frame with one
# header, so what is left is the payload in either case.
TCP_HEADERS = 14 + 20 + 32
UDP_HEADERS = 14 + 20 + 8


@dataclass(frozen=True)
class Check:
    name: str
    words: tuple[str, ...]
    # What the counters of the interface mean in the unit of the test.
    counted: Callable[[Counters, Counters], float]
    # The responder's counter and the metric of the rate.
    total: str
    rate: str
    is_paced: bool


def payload(headers: int) -> Callable[[Counters, Counters], float]:
    return lambda early, late: late.rx_bytes - early.rx_bytes - headers * (late.rx_frames - early.rx_frames)


def frames(early: Counters, late: Counters) -> float:
    return late.rx_frames - early.rx_frames


TCP = (payload(TCP_HEADERS), "bytes_received", "throughput_bps")
UDP = (payload(UDP_HEADERS), "bytes_received", "throughput_bps")
FRAMES = (frames, "received", "received_per_sec")
CHECKS = [
    Check("TCP stream at 2 Gbit/s", ("tcp", "--rate", "2G"), *TCP, is_paced=True),
    Check("TCP stream, flat out", ("tcp",), *TCP, is_paced=False),
    Check("UDP at 100 Mbit/s", ("udp", "--rate", "100M"), *UDP, is_paced=True),
    Check("UDP at 10000 datagrams/s of 100 bytes", ("udp", "--rate", "10kpps", "--size", "100"), *UDP, is_paced=True),
    Check("frames at 50000/s", ("packet", "--rate", "50k"), *FRAMES, is_paced=True),
    Check("frames, flat out", ("packet",), *FRAMES, is_paced=False),
]


class Middle(threading.Thread):
    """The counters in the middle of a run of some seconds."""

    def __init__(self, lab: Lab, seconds: float):
        super().__init__(daemon=True)
        self.lab, self.seconds = lab, seconds
        self.early: Optional[Counters] = None
        self.late: Optional[Counters] = None

    def run(self):
        time.sleep(1.0)
        self.early = self.lab.counters(TARGET)
        time.sleep(self.seconds - 1.2)
        self.late = self.lab.counters(TARGET)


def check(lab: Lab, one: Check, seconds: float) -> tuple[float, Optional[float]]:
    """The relative errors of the count and of the rate."""
    middle = Middle(lab, seconds)
    times = ["--rounds", "1", "--warmup", "300ms", "--duration", f"{round(seconds * 1000)}ms", "--json", "--quiet"]
    before = lab.counters(TARGET)
    middle.start()
    finished = lab.run(GENERATOR, [lab.fathom, *tools.served(*one.words)(lab), *times])
    middle.join()
    after = lab.counters(TARGET)
    test = json.loads(finished.output)["tests"][0]
    records = test["trials"][0]["records"].values()
    total = next(record for record in records if record["side"] == "responder")["totals"][one.total]
    count_error = total / one.counted(before, after) - 1
    if not one.is_paced:
        return count_error, None
    summary = next(summary for summary in test["summaries"] if summary["metric"]["name"] == one.rate)
    reported = summary["value"] / (8 if summary["metric"]["unit"] == "bits_per_sec" else 1)
    seen = one.counted(middle.early, middle.late) / (middle.late.at_s - middle.early.at_s)
    return count_error, reported / seen - 1


def main() -> int:
    parser = argparse.ArgumentParser(description="what fathom reports against the counters of the interface")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run (default: 4)")
    given = parser.parse_args()
    n_wrong = 0
    with Lab(f"bench-{os.getpid()}") as lab:
        tools.serve_fathom(lab)
        print(f"{'test':<40} {'count':>9} {'rate':>9}   (reported / counted by the interface - 1)")
        for one in CHECKS:
            errors = check(lab, one, given.seconds)
            is_wrong = any(error is not None and abs(error) > WITHIN for error in errors)
            n_wrong += is_wrong
            shown = ["–" if error is None else f"{error:+.3%}" for error in errors]
            print(f"{one.name:<40} {shown[0]:>9} {shown[1]:>9}{'   off by more than 1 %' if is_wrong else ''}", flush=True)
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
