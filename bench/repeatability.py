#!/usr/bin/env python3
"""Evaluates the same machine twice, again and again, and counts how often the two 95 % intervals of a value overlap.

Two runs of an unchanged machine that disagree mean that the intervals are too narrow, whatever the values are. The widths stand
beside, since an interval that holds everything overlaps always.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from hosts import fathom_program

TARGET_SHARE = 0.90
HEADLINES = {
    *("requests_per_sec", "transactions_per_sec", "connections_per_sec", "received_per_sec", "throughput_bps"),
    *("latency_ns_p50", "latency_ns_p99", "cost_ns", "cost_initiator_ns", "cost_sender_ns"),
}


def evaluate(is_quick: bool, folder: str) -> dict:
    words = [fathom_program(), "evaluate", "--json", "--quiet", "--output", str(Path(folder) / "run")]
    words += ["--quick"] if is_quick else []
    finished = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=folder)
    if finished.returncode not in (0, 10, 12):
        raise SystemExit(f"fathom evaluate ended with {finished.returncode}: {finished.stderr[-500:]}")
    return json.loads(finished.stdout)


def intervals(run: dict) -> dict[str, tuple[float, float, float]]:
    """Value, low and high of each headline that has an interval."""
    found = {}
    for test in run["tests"]:
        for summary in test["summaries"]:
            name, confidence = summary["metric"]["name"], summary.get("confidence")
            if name in HEADLINES and confidence:
                found[f"{test['name']}.{name}"] = (summary["value"], confidence["low"], confidence["high"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="how often two evaluations of the same machine agree")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of evaluations (default: 20)")
    parser.add_argument("--quick", action="store_true", help="evaluations with --quick")
    given = parser.parse_args()
    overlaps, widths, drifts = defaultdict(list), defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="fathom-bench-") as folder:
        for pair in range(given.pairs):
            one, other = (intervals(evaluate(given.quick, folder)) for _ in range(2))
            for name in [name for name in one if name in other]:
                (value, low, high), (again, again_low, again_high) = one[name], other[name]
                overlaps[name].append(low <= again_high and again_low <= high)
                widths[name] += [(high - low) / 2 / value] if value else []
                drifts[name] += [abs(again - value) / value] if value else []
            agreed = [pairs[-1] for pairs in overlaps.values()]
            print(f"{pair + 1}/{given.pairs}: {sum(agreed)} of {len(agreed)} overlap", file=sys.stderr, flush=True)
    return tell(overlaps, widths, drifts)


def tell(overlaps: dict, widths: dict, drifts: dict) -> int:
    print(f"{'value':<36} overlap       half width  difference   (medians)")
    for name, pairs in overlaps.items():
        shares = [f"{statistics.median(values[name]):.1%}" if values[name] else "–" for values in (widths, drifts)]
        mark = "" if sum(pairs) >= TARGET_SHARE * len(pairs) else "  below"
        print(f"{name:<36} {sum(pairs):>3} of {len(pairs):<3} {shares[0]:>14} {shares[1]:>11}{mark}")
    every = [overlap for pairs in overlaps.values() for overlap in pairs]
    share = sum(every) / len(every)
    print(f"\n{sum(every)} of {len(every)} pairs of intervals overlap: {share:.1%} (target: at least {TARGET_SHARE:.0%})")
    return 0 if share >= TARGET_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
