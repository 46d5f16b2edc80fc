#!/usr/bin/env python3
"""Compares fathom with its peers: the same work, in the same run, interleaved, between two hosts of a lab.

First comes what a unit of work costs the generator in processor time, since on few cores a rate measures the target as much as
the tool; then the rate; then system calls, counted in runs of their own that nobody times.
"""

import argparse
import contextlib
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Optional

import known
import tools
from hosts import CORES, GENERATOR, TARGET, Failed, Finished, Lab, busy_of_cores, fathom_program, share_busy
from tools import Tool, Work

RESULTS = Path(__file__).with_name("RESULTS.md")
PLACEHOLDER = "–"
# A peer that gives up more often in one row is not compared.
GIVEN_UP_MAX = 10


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    # Costs and rates are told per so many units.
    scale: float
    ours: Tool
    theirs: Tool
    target: Optional[Callable[[Lab], None]] = None
    # What is not equal in spite of all.
    remark: str = ""
    # The ratio of costs that we are out for.
    aim: Optional[float] = None
    # The ratio of rates that we are out for.
    aim_rate: Optional[float] = None
    # The rate is asked for, so more of it is not better.
    is_paced: bool = False
    # The rate is read from the receiver's interface, for tools that do not tell it alike.
    is_counted_at_interface: bool = False
    # The cost is that of the threads on the target, which the tool tells.
    is_cost_of_target: bool = False


NGINX = tools.Page(tools.NGINX_PORT)
OWN = tools.Page(tools.RESPONDER_PORT)
HTTP = f"HTTP keep-alive, {tools.CONNECTIONS} connections, 1 thread, {tools.FILE_BYTES} bytes"
CLOSES = "connection per request"
OPEN_RATE = 20_000
LARGE_BATCH = tools.fathom_http(NGINX, "--batch", "32", "--batch-wait", "500us")
LIKE_AB = tools.fathom_http(NGINX, "--per-connection", "1")


SHOP = tools.Page(tools.SHOP_PORT, path="catalog")
SHOP_NAME = f"five steps with login, token, CSV and checks, {tools.CONNECTIONS} users, 1 thread"


def by_bytes(size: int, name: str) -> Row:
    """Bodies, told per GiB."""
    page = tools.Page(tools.NGINX_PORT, size)
    ours = tools.fathom_http(page, unit="bytes_received", rate="received_bps")
    remark = "fathom lets the kernel discard bodies whose length it knows, wrk copies and reads them"
    row = Row(f"HTTP keep-alive, bodies of {name}, nginx", "GiB", 2**30, ours, tools.wrk(page, is_by_bytes=True))
    return replace(row, target=tools.serve_nginx, remark=remark, aim=1.0)


def scripted(name: str, script: str) -> Row:
    """The same script in the same words, given to both."""
    both = (tools.fathom_as_wrk(NGINX, script), tools.wrk(NGINX, script))
    return Row(f"wrk script with {name}, {tools.CONNECTIONS} connections, nginx", "request", 1, *both, tools.serve_nginx, aim=1 / 1.2)


HTTP_ROWS = [
    Row(f"{HTTP}, nginx", "request", 1, tools.fathom_http(NGINX), tools.wrk(NGINX), tools.serve_nginx, aim=0.60),
    Row(
        *(f"{HTTP}, nginx, batches of 32", "request", 1, LARGE_BATCH, tools.wrk(NGINX)),
        *(tools.serve_nginx, "an answer may wait for 31 others, at most 500 µs"),
        aim=0.55,
    ),
    Row(
        *(f"{HTTP}, nginx, epoll", "request", 1, tools.fathom_http(NGINX, "--reactor", "epoll"), tools.wrk(NGINX)),
        tools.serve_nginx,
        aim=0.80,
    ),
    Row(f"{HTTP}, fathom serve", "request", 1, tools.fathom_http(OWN), tools.wrk(OWN), aim=1 / 1.6),
    Row(f"{HTTP}, fathom serve", "request", 1, tools.fathom_http(OWN), tools.h2load(OWN), aim=1 / 2),
    Row(f"{HTTP}, fathom serve", "request", 1, tools.fathom_http(OWN), tools.hey(OWN), aim=1 / 3),
    Row(f"{HTTP}, fathom serve", "request", 1, tools.fathom_http(OWN), tools.ab(OWN, "-k"), aim=1 / 1.5),
    by_bytes(64 * 2**10, "64 KiB"),
    by_bytes(2**20, "1 MiB"),
    Row(f"HTTP, {CLOSES}, nginx", "request", 1, LIKE_AB, tools.ab(NGINX), tools.serve_nginx, aim=1.0),
    Row(
        *("HTTPS keep-alive, nginx", "request", 1),
        tools.fathom_http(tools.Page(tools.TLS_PORT, scheme="https"), "--insecure"),
        tools.wrk(tools.Page(tools.TLS_PORT, scheme="https")),
        tools.serve_nginx,
        aim=1.0,
    ),
    Row(
        *("HTTP open model, 50,000/s, fathom serve", "request", 1, tools.fathom_http(OWN, "--rate", "50k"), tools.wrk(OWN)),
        remark="fathom keeps a rate, wrk is in its closed model",
        is_paced=True,
        aim=1.0,
    ),
    Row(
        *(f"HTTP open model, {OPEN_RATE:,}/s, cheap pacing, fathom serve", "request", 1),
        *(tools.fathom_http(OWN, "--rate", str(OPEN_RATE), "--pacing", "cheap"), tools.wrk2(OWN, OPEN_RATE)),
        remark="both send what is due now and then: fathom at most once a millisecond, wrk2 when a timer of its connection ends",
        is_paced=True,
        aim=1.0,
    ),
]
SCRIPT_ROWS = [
    scripted("request()", "request.lua"),
    scripted("request() and response()", "response.lua"),
    scripted("nothing per request", "static.lua"),
    Row(
        *("wrk script with nothing per request, against none", "request", 1),
        *(tools.fathom_as_wrk(NGINX, "static.lua"), tools.fathom_as_wrk(NGINX), tools.serve_nginx),
        remark="both are fathom, with the script and without",
        aim=1.0,
    ),
]
SHOP_ROWS = [
    Row(
        *(f"scenario: {SHOP_NAME}", "request", 1, tools.fathom_scenario()),
        replace(tools.fathom_http(SHOP, "--header", f"Authorization: Bearer {tools.TOKEN}"), name="fathom http"),
        tools.serve_shop,
        remark="the plain engine asks for one page of the same shop again and again",
        aim=1 / 0.6,
    ),
    Row(
        *(f"scenario: {SHOP_NAME}", "request", 1, tools.fathom_scenario(), tools.jmeter("shop.jmx"), tools.serve_shop),
        remark="JMeter's first 15 s are left out with what they cost, as its virtual machine compiles then",
        aim=1 / 10,
    ),
]


def stream(name: str, ours: Tool, theirs: Tool, aim_rate: float) -> Row:
    """Streams of TCP, told per GiB; what one costs to send is not to be more than nine tenths of what it costs a peer."""
    row = Row(f"TCP stream, {name}", "GiB", 2**30, ours, theirs, tools.serve_iperf3, "each to its own server")
    return replace(row, aim=None if theirs.name.startswith("fathom") else 0.9, aim_rate=aim_rate)


# Sent without a copy by both, so that the core of the sender is in nobody's way.
RECEIVER_ROW = replace(
    stream(
        "1 flow, sendfile, received without a copy, against with one (the receiver's CPU)",
        tools.fathom_stream("--send", "sendfile", "--receive", "truncate"),
        tools.fathom_stream("--send", "sendfile", name="fathom, copying"),
        1.0,
    ),
    remark="both are fathom and send alike; CPU is that of the receiving threads",
    aim=1 / 1.3,
    is_cost_of_target=True,
)
STREAM_ROWS = [
    stream("1 flow, each with its defaults", tools.fathom_stream(), tools.iperf3(), 1.4),
    replace(
        stream("1 flow, `as iperf3` at both ends, its defaults", tools.iperf3(face=True), tools.iperf3(), 1.4),
        target=tools.serve_both_iperf3,
    ),
    stream("1 flow, blocks of 128 KiB", tools.fathom_stream("--write", "128KiB"), tools.iperf3("-l", "128K"), 1.05),
    stream("2 flows, each with its defaults", tools.fathom_stream("--flows", "2"), tools.iperf3("-P", "2"), 1.15),
    stream("1 flow, sendfile", tools.fathom_stream("--send", "sendfile"), tools.iperf3("-Z"), 1.05),
    stream(
        "1 flow, received without a copy, against with one",
        tools.fathom_stream("--receive", "truncate"),
        tools.fathom_stream(name="fathom, copying"),
        1.3,
    ),
    RECEIVER_ROW,
]


def frames(name: str, ours: Tool, theirs: Tool, aim_rate: float) -> Row:
    """Frames of 64 bytes flat out into a sink in XDP, counted at the target's interface."""
    remark = "the same sink in XDP, attached by fathom for all; fathom numbers and stamps every frame, a peer repeats one of them"
    is_peer = not theirs.name.startswith("fathom")
    row = Row(f"Ethernet frames, 64 bytes, {name}", "frame", 1, ours, theirs, remark=remark if is_peer else "both are fathom")
    return replace(row, aim_rate=aim_rate, is_counted_at_interface=True)


LIVE = tools.fathom_frames("--backend", "live")
FRAME_ROWS = [
    frames("live", LIVE, tools.TRAFGEN_FRAMES, 4),
    frames("live", LIVE, tools.HPING_FRAMES, 12),
    frames("AF_XDP with copies", tools.fathom_frames("--backend", "xsk"), tools.TRAFGEN_FRAMES, 1.5),
    frames("packet socket", tools.fathom_frames("--backend", "socket"), tools.TRAFGEN_FRAMES, 1.05),
    # More than can be had, so that each frame is late and everything is decided in the program; fathom calls such a run INVALID (exit 1).
    frames(
        "live with a schedule, against without",
        replace(tools.fathom_frames("--backend", "live", "--rate", "8M"), exits=(0, 1)),
        *(replace(LIVE, name="fathom flat out"), 0.9),
    ),
]
ROWS = [
    *HTTP_ROWS,
    *SCRIPT_ROWS,
    *SHOP_ROWS,
    *STREAM_ROWS,
    Row(
        *("TCP request/response, 1 flow, 1 byte", "transaction", 1, tools.FATHOM_RR, tools.netperf("TCP_RR")),
        *(tools.serve_netperf, "each to its own server"),
        aim=1.0,
    ),
    Row(
        *("TCP request/response, 1 flow, 14 bytes", "transaction", 1),
        *(tools.FATHOM_RR_LIKE_SOCKPERF, tools.sockperf("--tcp"), tools.serve_sockperf("--tcp"), "each to its own server"),
        aim=1.0,
    ),
    Row(
        *(f"TCP request/response, {tools.MANY_FLOWS} flows, 1 byte", "transaction", 1),
        *(tools.FATHOM_RR_MANY, tools.many_netperfs(tools.MANY_FLOWS), tools.serve_netperf),
        remark="each to its own server; one process against one for each flow",
        aim=1 / 2,
    ),
    Row(
        *("TCP connect/request/response, 1 byte", "connection", 1, tools.FATHOM_CRR, tools.netperf("TCP_CRR")),
        *(tools.serve_netperf, "each to its own server"),
        aim=1.0,
    ),
    Row(
        *("UDP request/response, 1 flow", "transaction", 1, tools.FATHOM_UDP_RR, tools.netperf("UDP_RR")),
        *(tools.serve_netperf, "each to its own server; fathom's least is 8 bytes, netperf's 1"),
        aim=1.0,
    ),
    Row(
        *("UDP request/response, 1 flow, 14 bytes", "transaction", 1),
        *(tools.FATHOM_UDP_RR_LIKE_SOCKPERF, tools.sockperf(), tools.serve_sockperf(), "each to its own server"),
        aim=1.0,
    ),
    Row(
        *("UDP 1400 bytes at 500 Mbit/s", "datagram", 1, tools.FATHOM_UDP),
        tools.iperf3("-u", "-b", str(tools.UDP_BITS_PER_S), "-l", str(tools.DATAGRAM_BYTES)),
        tools.serve_iperf3,
        "each to its own server; fathom spins to keep equal distances, iperf3 sleeps and sends what is due each millisecond",
        is_paced=True,
    ),
    Row(
        *("UDP 1400 bytes at 500 Mbit/s, in bursts", "datagram", 1, tools.FATHOM_UDP_BURSTS),
        tools.iperf3("-u", "-b", str(tools.UDP_BITS_PER_S), "-l", str(tools.DATAGRAM_BYTES)),
        tools.serve_iperf3,
        "each to its own server; both send what is due each millisecond",
        is_paced=True,
        aim=1.0,
    ),
    Row(
        *("UDP 64 bytes, flat out, each datagram alone", "datagram", 1, tools.fathom_udp("--size", "64")),
        tools.iperf3("-u", "-b", "0", "-l", "64"),
        tools.serve_iperf3,
        "each to its own server; rates are of what arrived",
        aim=1 / 1.3,
    ),
    Row(
        *("UDP 1400 bytes, flat out, super-buffers", "datagram", 1),
        tools.fathom_udp("--size", "1400", "--offload", "both"),
        tools.iperf3("-u", "-b", "0", "-l", "1400"),
        tools.serve_iperf3,
        "each to its own server; fathom's datagrams are joined (UDP_SEGMENT, UDP_GRO) as datagrams at the socket, iperf3 3.12 cannot",
        aim=1 / 4,
    ),
    *FRAME_ROWS,
]


@dataclass(frozen=True)
class Sample:
    """One run of one tool."""

    work: Work
    cpu_s: float
    per_s: float
    # Busy share of the cores while it ran, by anyone.
    busy: dict[str, float]
    # What is compared: the same, or that of the threads on the target.
    compared_s: float

    @property
    def cost_s(self) -> float:
        return self.compared_s / self.work.units


@dataclass
class Outcome:
    row: Row
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)
    calls: dict[str, Optional[float]] = field(default_factory=dict)
    skipped: str = ""
    # Runs that the peer ended by itself.
    n_given_up: int = 0


class InterfaceRate(threading.Thread):
    """Frames per second at the receiver's interface, in the middle of a run."""

    def __init__(self, lab: Lab, seconds: float):
        super().__init__(daemon=True)
        self.lab = lab
        # Neither the start of a tool nor its end: fathom warms up for at most half a second.
        self.window_s = (0.8, max(1.2, seconds - 0.2))
        self.per_s = 0.0

    def run(self):
        time.sleep(self.window_s[0])
        early = self.lab.counters(TARGET)
        time.sleep(self.window_s[1] - self.window_s[0])
        late = self.lab.counters(TARGET)
        self.per_s = (late.rx_frames - early.rx_frames) / (late.at_s - early.at_s)


def once(lab: Lab, outcome: Outcome, tool: Tool, seconds: float) -> Sample:
    """One timed run of a tool."""
    row = outcome.row
    if tool.start_s:
        return without_start(lab, outcome, tool, seconds)
    with surroundings(lab, tool):
        while True:
            watch = InterfaceRate(lab, seconds)
            if row.is_counted_at_interface:
                watch.start()
            before = busy_of_cores()
            finished = attempt(lab, outcome, tool, tool.words(lab, seconds))
            after = busy_of_cores()
            if row.is_counted_at_interface:
                watch.join()
            if finished:
                break
    work = tool.work(finished)
    busy = {host: share_busy(before, after, core) for host, core in CORES.items()}
    per_s = watch.per_s if row.is_counted_at_interface else work.per_s
    return Sample(work, finished.cpu_s, per_s, busy, work.target_s if row.is_cost_of_target else finished.cpu_s)


def without_start(lab: Lab, outcome: Outcome, tool: Tool, seconds: float) -> Sample:
    """The difference of a short and a longer run: what the tool does until it is at its best is in both."""
    # The longer run is that much longer, so that the difference is more than how much two starts differ.
    longer_s = max(10.0, 3 * seconds)
    short, _ = whole_run(lab, outcome, tool, tool.start_s)
    long, busy = whole_run(lab, outcome, tool, tool.start_s + longer_s)
    units = tool.work(long).units - tool.work(short).units
    if units <= 0:
        raise Failed(f"{tool.name} did no more in {tool.start_s + longer_s:g} s than in {tool.start_s:g} s")
    cpu_s = long.cpu_s - short.cpu_s
    return Sample(Work(units, units / longer_s), cpu_s, units / longer_s, busy, cpu_s)


def whole_run(lab: Lab, outcome: Outcome, tool: Tool, seconds: float) -> tuple[Finished, dict[str, float]]:
    before = busy_of_cores()
    finished = attempt(lab, outcome, tool, tool.words(lab, seconds))
    if finished is None:
        raise Failed(f"{tool.name} gave up")
    after = busy_of_cores()
    return finished, {host: share_busy(before, after, core) for host, core in CORES.items()}


def attempt(lab: Lab, outcome: Outcome, tool: Tool, words: list[str]) -> Optional[Finished]:
    """Runs a tool, or counts that it gave up, which it may do now and then."""
    try:
        finished = lab.run(GENERATOR, words, exits=tool.exits)
        said = finished.output + finished.errors
    except Failed as failure:
        finished, said = None, str(failure)
    if finished and not (tool.gives_up and tool.gives_up in said):
        return finished
    if tool.gives_up is None or tool.gives_up not in said or outcome.n_given_up >= GIVEN_UP_MAX:
        raise Failed(said)
    outcome.n_given_up += 1
    return None


def surroundings(lab: Lab, tool: Tool):
    return tools.Sink(lab) if tool.name in (tools.TRAFGEN, tools.HPING) else contextlib.nullcontext()


def calls_per_unit(lab: Lab, outcome: Outcome, tool: Tool) -> float:
    """System calls per unit of work, from the difference of a short and a longer run: what starts and ends a tool is in both."""
    counts = []
    trace = lab.folder / "calls"
    for seconds in (1.0, 3.0):
        with surroundings(lab, tool):
            words = ["strace", "-c", "-f", "-o", str(trace), *tool.words(lab, seconds)]
            while not (finished := attempt(lab, outcome, tool, words)):
                pass
        total = re.search(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total", trace.read_text(), re.MULTILINE)
        if total is None:
            raise Failed("strace told no total")
        counts.append((int(total[1]), tool.work(finished).units))
    (few, little), (many, much) = counts
    return (many - few) / (much - little) if much > little else many / much


def compare(lab: Lab, row: Row, n_pairs: int, seconds: float) -> Outcome:
    """One row; a tool that is not there or does not work leaves its reason in it."""
    outcome = Outcome(row)
    is_there = row.theirs.is_there and ("netperf" not in row.theirs.name or shutil.which("netserver"))
    if not is_there:
        outcome.skipped = f"{row.theirs.name} is not installed (bench/peers.sh)"
        return outcome
    try:
        with lab.serving():
            if row.target:
                row.target(lab)
            run_pairs(lab, outcome, n_pairs, seconds)
            for name, tool in (("ours", row.ours), ("theirs", row.theirs)):
                # A virtual machine that is traced has not started within the time.
                outcome.calls[name] = None if tool.start_s else calls_per_unit(lab, outcome, tool)
    except Failed as failure:
        outcome.skipped = str(failure)
    return outcome


def run_pairs(lab: Lab, outcome: Outcome, n_pairs: int, seconds: float):
    """Pairs A B, B A, … after one pair that warms up."""
    row = outcome.row
    for tool in (row.ours, row.theirs):
        once(lab, outcome, tool, min(seconds, 2.0))
    for pair in range(n_pairs):
        order = [(row.ours, outcome.ours), (row.theirs, outcome.theirs)]
        for tool, samples in order if pair % 2 == 0 else reversed(order):
            samples.append(once(lab, outcome, tool, seconds))
        ours, theirs = outcome.ours[-1], outcome.theirs[-1]
        told(f"  {pair + 1}/{n_pairs}: cost {ours.cost_s / theirs.cost_s:.2f}, rate {ours.per_s / theirs.per_s:.2f}")


def told(text: str):
    print(text, file=sys.stderr, flush=True)


# --- the table ------------------------------------------------------------------------------------------------------------


def ratios(outcome: Outcome, value: Callable[[Sample], float]) -> list[float]:
    return [value(ours) / value(theirs) for ours, theirs in zip(outcome.ours, outcome.theirs)]


def span(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def judged(values: list[float], is_less_better: bool) -> str:
    """Won and lost only where all pairs but one in five agree."""
    n_better = sum((value < 1) == is_less_better for value in values)
    allowed = len(values) // 5
    if len(values) - n_better <= allowed:
        return "won"
    return "**LOST**" if n_better <= allowed else "even"


def si(value: float, unit: str) -> str:
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def median(samples: list[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(value(sample) for sample in samples)


def cost(row: Row, samples: list[Sample]) -> str:
    return si(median(samples, lambda sample: sample.cost_s) * row.scale, "s")


def rate(row: Row, samples: list[Sample]) -> str:
    per_s = median(samples, lambda sample: sample.per_s)
    return si(per_s * 8, "bit/s") if row.unit == "GiB" else si(per_s, "/s")


def calls(outcome: Outcome, name: str) -> str:
    value = outcome.calls.get(name)
    return PLACEHOLDER if value is None else f"{value * outcome.row.scale:.3g}"


def limited(samples: list[Sample]) -> str:
    """How busy the tool kept its core, and how busy all that ran kept both."""
    own = median(samples, lambda sample: sample.cpu_s / sample.work.units * sample.per_s)
    cores = [median(samples, lambda sample: sample.busy[host]) for host in (GENERATOR, TARGET)]
    return f"{own:.0%} of its core; cores {cores[0]:.0%}, {cores[1]:.0%}"


def outside_engine(samples: list[Sample]) -> str:
    """What the controller, the agent's own work and the document cost in a run, beside the threads that did the work."""
    if any(sample.work.engine_s is None for sample in samples):
        return PLACEHOLDER
    return si(median(samples, lambda sample: sample.cpu_s - sample.work.engine_s), "s")


def tables(outcomes: list[Outcome]) -> list[str]:
    """What was reached first, then what explains it."""
    numbered = list(enumerate(outcomes, 1))
    reached = ["", "work", "peer", "CPU per unit: ours", "theirs", "ratio (min–max)", "aim", ""]
    reached += ["rate: ours", "theirs", "ratio (min–max)", "aim", ""]
    explained = ["", "system calls per unit: ours", "theirs", "ours outside the engine, per run", "generator: ours", "theirs"]
    explained += ["ours was limited by (its own finding)", "not equal"]
    lines = [row_of(reached), row_of(["---"] * len(reached)), *(row_of(reached_by(*one)) for one in numbered), ""]
    lines += [row_of(explained), row_of(["---"] * len(explained))]
    return lines + [row_of(explanation(*one)) for one in numbered if not one[1].skipped]


def reached_by(number: int, outcome: Outcome) -> list[str]:
    row = outcome.row
    cells = [str(number), f"{row.name}, per {row.unit}", row.theirs.name]
    if outcome.skipped:
        return [*cells, f"not compared: {outcome.skipped}", *[""] * 9]
    by_cost = ratios(outcome, lambda sample: sample.cost_s)
    by_rate = ratios(outcome, lambda sample: sample.per_s)
    cells += [cost(row, outcome.ours), cost(row, outcome.theirs), span(by_cost)]
    cells += [f"≤ {row.aim:.2f}" if row.aim else PLACEHOLDER, judged(by_cost, True)]
    cells += [rate(row, outcome.ours), rate(row, outcome.theirs), span(by_rate)]
    cells += [f"≥ {row.aim_rate:.2f}" if row.aim_rate else PLACEHOLDER]
    return [*cells, "paced" if row.is_paced else judged(by_rate, False)]


def explanation(number: int, outcome: Outcome) -> list[str]:
    row = outcome.row
    cells = [str(number), calls(outcome, "ours"), calls(outcome, "theirs"), outside_engine(outcome.ours)]
    cells += [limited(outcome.ours), limited(outcome.theirs), outcome.ours[-1].work.limit or "no finding"]
    gave_up = f"{row.theirs.name} gave up {outcome.n_given_up} times" if outcome.n_given_up else ""
    return [*cells, "; ".join(filter(None, (row.remark, gave_up)))]


def row_of(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


# --- the machine ----------------------------------------------------------------------------------------------------------


def first_line(*words: str) -> str:
    try:
        finished = subprocess.run(words, capture_output=True, text=True, timeout=10)
    except OSError:
        return "not installed"
    text = (finished.stdout + finished.stderr).strip()
    return text.splitlines()[0] if text else PLACEHOLDER


def jmeter_version() -> str:
    """Its banner is a drawing of letters with the version at the end of one line."""
    try:
        text = subprocess.run(["jmeter", "--version", "-j", os.devnull], capture_output=True, text=True, timeout=30).stdout
    except OSError:
        return "jmeter not installed"
    version = re.search(r"\d+\.\d+(?:\.\d+)?", text)
    return f"jmeter {version[0]}" if version else "jmeter"


def machine(n_pairs: int, seconds: float) -> list[str]:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    versions = {
        "fathom": first_line(fathom_program(), "--version"),
        "wrk": first_line("wrk", "--version"),
        "ab": first_line("ab", "-V"),
        "wrk2": "wrk2" if shutil.which("wrk2") else "wrk2 not installed",
        "h2load": first_line("h2load", "--version"),
        "hey": "hey of Debian" if shutil.which("hey") else "not installed",
        "nginx": first_line("nginx", "-v"),
        "iperf3": first_line("iperf3", "--version"),
        "netperf": first_line("netperf", "-V"),
        "trafgen": first_line("trafgen", "--version"),
        "hping3": first_line("hping3", "--version"),
        "jmeter": jmeter_version(),
    }
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return [
        f"- Linux {platform.release()}, {model[1] if model else platform.machine()}, {os.cpu_count()} cores; load before (1, 5, 15 min): {load}",
        f"- generator on host {GENERATOR}, core {CORES[GENERATOR]}; target on host {TARGET}, core {CORES[TARGET]}; a veth between",
        f"- {n_pairs} pairs A B B A … of {seconds:g} s after one that warms up; medians, ratios ours / theirs within a pair",
        "- CPU: user and system time of the generator's process tree (wait4), start and end included",
        "- calls: strace -c -f in separate runs, the difference of a run of 3 s and one of 1 s",
        "- " + "; ".join(versions.values()),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fathom and its peers, side by side")
    parser.add_argument("--quick", action="store_true", help="two pairs of two seconds, for trying")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run (default: 3)")
    parser.add_argument("--only", metavar="TEXT", help="only rows with this text in their name")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too")
    given = parser.parse_args()
    if given.quick:
        given.pairs, given.seconds = 2, 2.0
    return given


def measured(given: argparse.Namespace) -> tuple[list[Outcome], list[list[str]], bool]:
    """The rows that were measured, and whether they are all; an interrupt ends with the rows before it."""
    outcomes, answers = [], []

    def is_wanted(row) -> bool:
        return not given.only or given.only in row.name

    with Lab(f"bench-{os.getpid()}") as lab:
        # Connections of other rows that linger in TIME-WAIT are in nobody's way.
        lab.set(GENERATOR, "ipv4.tcp_tw_reuse", "1")
        lab.set(GENERATOR, "ipv4.ip_local_port_range", "10000 65000")
        tools.serve_fathom(lab)
        try:
            for row in filter(is_wanted, ROWS):
                told(row.name)
                outcomes.append(compare(lab, row, given.pairs, given.seconds))
                if outcomes[-1].skipped:
                    told(f"  {outcomes[-1].skipped}")
            for row in filter(is_wanted, known.ROWS):
                told(row.name)
                answers += known.asked(lab, row, given.pairs, given.seconds)
        except KeyboardInterrupt:
            return outcomes, answers, False
    return outcomes, answers, True


def main() -> int:
    given = arguments()
    head = machine(given.pairs, given.seconds)
    outcomes, answers, is_whole = measured(given)
    parts = [tables(outcomes)] if outcomes else []
    if answers:
        columns = ["what is known", "target", "measured", ""]
        parts.append([row_of(columns), row_of(["---"] * len(columns)), *map(row_of, answers)])
    lines = [line for part in parts for line in (*part, "")]
    text = "\n".join(["# Ours against the peers", "", *head, "", *lines])
    print(text)
    if given.write and is_whole and not given.only:
        RESULTS.write_text(text)
    return 0 if is_whole else 130


if __name__ == "__main__":
    sys.exit(main())
