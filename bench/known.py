"""What is known beforehand, against what fathom measures: a schedule by the sink's own stamps, and a policer's rate, loss and buffer.

There is no peer: none of those that are installed tells at the receiver what became of its schedule, or searches for a throughput.
"""

import json
import subprocess
from dataclasses import dataclass
from typing import Callable, Iterator

import tools
from hosts import GENERATOR, Failed, Lab

FRAME_BYTES = "64"
# What is aimed at.
UNSENT_MAX = 0.001
GAP_WITHIN_NS = 20_000
POLICED_PER_S, POLICED_BURST = 200_000, 512
THROUGHPUT_WITHIN = 0.005
LOSS_WITHIN = 0.002
# How long each trial of the loss curve is.
TRIAL_S = 1
# `--burst-step`: how finely bursts are searched.
BURST_STEP = 8
# A search that others keep from coming to its end is ended.
LONGEST_S = 600


@dataclass(frozen=True)
class Answer:
    target: str
    measured: str
    is_met: bool


@dataclass(frozen=True)
class Known:
    name: str
    ask: Callable[[Lab, int, float], Iterator[Answer]]


def paced(rate: int, has_gap_target: bool) -> Callable[[Lab, int, float], Iterator[Answer]]:
    """A rate that is kept: nothing is missing, little is late, and gaps are those of the schedule."""

    def ask(lab: Lab, n: int, seconds: float) -> Iterator[Answer]:
        times = ["--warmup", "200ms", "--duration", f"{round(seconds * n * 1000)}ms", "--rounds", str(n), "--json", "--quiet"]
        words = tools.served("packet", "--size", FRAME_BYTES, "--rate", str(rate))(lab)
        run = json.loads(lab.run(GENERATOR, [lab.fathom, *words, *times], longest_s=60 + n * (seconds + 5)).output)
        test = run["tests"][0]
        records = [record for trial in test["trials"] for record in trial["records"].values()]
        sent = [record["totals"] for record in records if record["side"] == "initiator"]
        if not sent or run["completeness"]["state"] != "complete":
            raise Failed(f"fathom measured nothing: {run['completeness']}")
        off = sum(abs(t["sent"] + t.get("send_refused", 0) + t["unsent"] - t["intended"]) for t in sent)
        yield Answer("offered + unsent = intended", f"off by {off} of {sum(t['intended'] for t in sent):,} frames", off == 0)
        unsent = [t["unsent"] / t["intended"] for t in sent]
        yield Answer(f"unsent ≤ {UNSENT_MAX:.1%}", f"{max(unsent):.3%} in the worst trial", max(unsent) <= UNSENT_MAX)
        gap = next(s["value"] for s in test["summaries"] if s["metric"]["name"] == "arrival_gap_ns_p99")
        late = gap - 1e9 / rate
        target = f"gap p99 ≤ schedule + {GAP_WITHIN_NS / 1000:.0f} µs" if has_gap_target else tools.NO_TARGET
        yield Answer(target, f"gap p99 {late / 1000:+.1f} µs", late <= GAP_WITHIN_NS or not has_gap_target)

    return ask


def policed(lab: Lab, _n: int, _seconds: float) -> Iterator[Answer]:
    """The policer of a lab of its own: everything that there is to find is known, what its bucket lets pass in a trial included."""
    device = ["--lab", "pair", "--device", f"policer:{POLICED_PER_S},{POLICED_BURST}"]
    methods = ["--method", "throughput,loss,back-to-back", "--sizes", FRAME_BYTES, "--max-rate", str(2 * POLICED_PER_S)]
    trial = ["--trial", f"{TRIAL_S}s"]
    # Forty times what fills the buffer: longer bursts take longer than these machines leave a sender alone.
    bursts = ["--burst-step", str(BURST_STEP), "--burst-max", "100ms"]
    words = [lab.fathom, "packet", *device, *methods, *trial, *bursts, "--json", "--quiet"]
    try:
        finished = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_S)
        run = json.loads(finished.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        raise Failed(f"the policer was not measured: {error}") from error
    if run["completeness"]["state"] != "complete":
        raise Failed(run["completeness"].get("reason", "the run is not complete"))
    found = run["tests"][0]["benchmark"]
    value = {result["metric"]["name"]: result["value"] for result in found["results"]}
    off = value["throughput_per_sec"] / POLICED_PER_S - 1
    yield Answer(f"throughput within {THROUGHPUT_WITHIN:.1%}", f"{off:+.2%}", abs(off) <= THROUGHPUT_WITHIN)
    truth = lambda rate: max(0.0, 1 - (POLICED_PER_S + POLICED_BURST / TRIAL_S) / rate)
    worst = max((abs(point["loss_ratio"] - truth(point["rate"])) for point in found["loss"]), default=None)
    if worst is None:
        raise Failed("there is no loss curve")
    yield Answer(f"loss curve within {LOSS_WITHIN * 100:.1f} points", f"{worst * 100:.2f} points", worst <= LOSS_WITHIN)
    buffer = value["buffer_frames"]
    is_met = abs(buffer - POLICED_BURST) <= BURST_STEP
    yield Answer(f"buffer within one step of {BURST_STEP} frames", f"{buffer:.1f} of {POLICED_BURST} frames", is_met)


ROWS = [
    Known("known: frames paced at 1 k/s", paced(1_000, has_gap_target=False)),
    Known("known: frames paced at 100 k/s", paced(100_000, has_gap_target=True)),
    Known("known: frames paced at 1 M/s", paced(1_000_000, has_gap_target=False)),
    Known(f"known: policer of {POLICED_PER_S // 1000} k/s", policed),
]


def asked(lab: Lab, row: Known, n: int, seconds: float) -> list[list[str]]:
    """The lines of a row; one that could not be measured has its reason in it."""
    try:
        answers = list(row.ask(lab, n, seconds))
    except Failed as failure:
        return [[row.name, tools.NO_TARGET, f"not measured: {failure}", ""]]
    judged = lambda answer: "" if answer.target == tools.NO_TARGET else "won" if answer.is_met else "**MISSED**"
    return [[row.name, answer.target, answer.measured, judged(answer)] for answer in answers]
