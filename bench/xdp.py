#!/usr/bin/env python3
"""Requests from an XDP program beside those from sockets: the same work, between two hosts of a lab, interleaved.

The program runs in the receive path of the device, so no process has its processor time: what is compared is the busy time of both
cores, the target's work included. Targets are our responder in XDP, which costs next to nothing, and nginx with one worker.
"""

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Callable

import tools
from hosts import GENERATOR, TARGET, Failed, Finished, Lab, busy_of_cores

TICK_S = 0.01
RESPONDER_PORT = 8090
CONNECTIONS = 100
MANY = 10_000
# Sources of a million connections, and how they are reached.
NETWORK = "10.77.0.0/16"
HELD = 1_000_000
HELD_RATE = 100_000


@dataclass(frozen=True)
class Answers:
    """What a client did in its run."""

    n: float
    n_failed: float


@dataclass(frozen=True)
class Client:
    name: str
    words: Callable[[Lab, str, float], list[str]]
    answers: Callable[[Finished], Answers]
    # It has both sides itself, so it needs no target.
    has_target: bool = False
    # It has an XDP program on its device, which may have one.
    has_program: bool = False


def times(seconds: float) -> list[str]:
    return ["--warmup", "0s", "--duration", f"{round(seconds * 1000)}ms", "--rounds", "1", "--json", "--quiet"]


def fathom_answers(finished: Finished) -> Answers:
    run = json.loads(finished.output)
    [record] = [record for trial in run["tests"][0]["trials"] for record in trial["records"].values() if record["side"] == "initiator"]
    return Answers(record["totals"]["requests"], record["totals"].get("errors", 0))


def fathom(name: str, *options: str) -> Client:
    def words(lab: Lab, url: str, seconds: float) -> list[str]:
        return [lab.fathom, "http", url, "--allow", lab.address[TARGET], *options, *times(seconds)]

    return Client(name, words, fathom_answers, has_program="xdp" in options)


def both_sides(name: str, *options: str) -> Client:
    """The client and the responder in XDP."""

    def words(lab: Lab, _: str, seconds: float) -> list[str]:
        return [lab.fathom, "http", "--lab", lab.name, *options, *times(seconds)]

    return Client(name, words, fathom_answers, has_target=True, has_program=True)


def wrk(closes: bool = False, n: int = CONNECTIONS) -> Client:
    header = ["-H", "Connection: close"] if closes else []

    def words(_: Lab, url: str, seconds: float) -> list[str]:
        return ["wrk", "-t", "1", "-c", str(n), "-d", f"{tools.whole(seconds)}s", *header, url]

    def answers(finished: Finished) -> Answers:
        n_requests = re.search(r"(\d+) requests in", finished.output)
        if not n_requests:
            raise Failed(f"wrk: {finished.output}")
        errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", finished.output)
        # wrk counts the end of each answered connection as a read error.
        failed = [0, 0, 0] if errors is None else [int(errors[place]) for place in (1, 3, 4)]
        return Answers(float(n_requests[1]), sum(failed))

    return Client("wrk", words, answers)


XDP = ("--engine", "xdp")
KEEPS = ("--connections", str(CONNECTIONS))
CLOSES = (*KEEPS, "--per-connection", "1")
ALL_MANY = ("--connections", str(MANY))


@dataclass(frozen=True)
class Row:
    name: str
    target: str
    clients: list[Client]


ROWS = [
    Row("keep-alive, 100 connections", "responder", [both_sides("fathom, XDP", *XDP, *KEEPS, "--size", str(tools.FILE_BYTES)), fathom("fathom, sockets", *KEEPS, "--threads", "1"), wrk()]),
    Row("connection per request, 100 at once", "closing", [both_sides("fathom, XDP", *XDP, *CLOSES, "--size", str(tools.FILE_BYTES)), fathom("fathom, sockets", *CLOSES, "--threads", "1"), wrk(closes=True)]),
    Row("keep-alive, 100 connections", "nginx", [fathom("fathom, XDP", *XDP, *KEEPS), fathom("fathom, sockets", *KEEPS, "--threads", "1"), wrk()]),
    Row("connection per request, 100 at once", "nginx", [fathom("fathom, XDP", *XDP, *CLOSES), fathom("fathom, sockets", *CLOSES, "--threads", "1"), wrk(closes=True)]),
    Row("keep-alive, 10,000 connections", "nginx", [fathom("fathom, XDP", *XDP, *ALL_MANY), wrk(n=MANY)]),
]


def serve_program(lab: Lab, host: str, port: int, *options: str):
    """A program on the device of a host: a responder, which lets everything else pass. What another program sends back arrives at a veth only if
    that has one."""
    words = ["serve", "--only", "http", "--http-port", str(port), "--http-xdp", lab.interface(host), "--http-xdp-from", "0.0.0.0/0"]
    lab.start(host, [lab.fathom, *words, *options])
    lab.said("http")


def url_of(lab: Lab, target: str) -> str:
    port = tools.NGINX_PORT if target == "nginx" else RESPONDER_PORT
    path = str(tools.FILE_BYTES) if target == "nginx" else ""
    return f"http://{lab.address[TARGET]}:{port}/{path}"


@contextlib.contextmanager
def serving(lab: Lab, client: Client, target: str):
    """What a client needs on the two hosts."""
    with lab.serving():
        if target == "nginx":
            # All connections that wait are accepted at once: with one for each turn, the first ones would starve the others.
            tools.serve_nginx(lab, events="worker_connections 60000; multi_accept on;")
        if not client.has_target and (target != "nginx" or client.has_program):
            # Bodies that a frame of a client with sockets has room for.
            serve_program(lab, TARGET, RESPONDER_PORT, "--http-size", "43", "--http-keep-alive", "off" if target == "closing" else "on")
        if not client.has_program and target != "nginx":
            serve_program(lab, GENERATOR, RESPONDER_PORT)
        yield


def measure(lab: Lab, client: Client, target: str, seconds: float) -> tuple[float, float, float]:
    """Answers a second, busy time of both cores for each in µs, and failures."""
    with serving(lab, client, target):
        words = client.words(lab, url_of(lab, target), seconds)
        before = busy_of_cores()
        if client.has_target:
            ended = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=False)
            if ended.returncode:
                raise Failed(ended.stderr)
            finished = Finished(ended.stdout, ended.stderr, 0, 0, 0)
        else:
            finished = lab.run(GENERATOR, words, longest_s=seconds + 60)
        busy = sum(late[0] - early[0] for early, late in zip(before, busy_of_cores())) * TICK_S
    answers = client.answers(finished)
    if not answers.n:
        raise Failed(f"{client.name} got no answer")
    return answers.n / seconds, busy / answers.n * 1e6, answers.n_failed


def row(lab: Lab, of: Row, n_rounds: int, seconds: float):
    results: dict[str, list[tuple[float, float, float]]] = {client.name: [] for client in of.clients}
    for n in range(n_rounds):
        for client in of.clients if n % 2 == 0 else reversed(of.clients):
            try:
                results[client.name].append(measure(lab, client, of.target, seconds))
            except Failed as failure:
                print(f"<!-- {client.name}, {of.name}, {of.target}: {' '.join(str(failure).split())} -->", flush=True)
    for name, values in results.items():
        if not values:
            print(f"| {of.name} | {of.target} | {name} | no result | | |", flush=True)
            continue
        rate, cost, failed = (statistics.median(value[place] for value in values) for place in range(3))
        low, high = min(value[0] for value in values), max(value[0] for value in values)
        print(f"| {of.name} | {of.target} | {name} | {rate:,.0f} ({low:,.0f}–{high:,.0f}) | {cost:.2f} µs | {failed:,.0f} |", flush=True)


def held(lab: Lab, seconds: float):
    """A million connections that stay open, with requests on them."""
    lab.run(TARGET, ["ip", "route", "replace", NETWORK, "via", lab.address[GENERATOR]])
    client = both_sides("fathom, XDP", *XDP, "--connections", str(HELD), "--rate", str(HELD_RATE), "--source", NETWORK)
    rate, cost, failed = measure(lab, client, "responder", seconds)
    print(f"| keep-alive, {HELD:,} connections, {HELD_RATE:,} requests/s asked | responder | {client.name} | {rate:,.0f} | {cost:.2f} µs | {failed:,.0f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each client runs (default: 5)")
    parser.add_argument("--seconds", type=float, default=4, help="how long (default: 4)")
    parser.add_argument("--only", default="", help="only rows whose name or target has this text")
    given = parser.parse_args()
    with Lab("bench-xdp") as lab:
        print("| work | target | client | answers/s (lowest–highest) | busy time of both cores for each | failed |")
        print("|---|---|---|---|---|---|")
        for of in ROWS:
            if given.only in f"{of.name} {of.target}":
                row(lab, of, given.rounds, given.seconds)
        if given.only in f"{HELD:,} held":
            held(lab, given.seconds * 5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
