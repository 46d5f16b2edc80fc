#!/usr/bin/env python3
"""The same capture, sent again by fathom, GoReplay and tcpreplay, between two hosts of a lab.

The capture is of our own engine's requests to nginx, by tcpdump beside the engine. What was delivered is what nginx logs; what a
tool says of it is set beside that.
"""

import argparse
import json
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

import tools
from hosts import GENERATOR, TARGET, Failed, Finished, Lab, fathom_program, wait_for

# Each connection has as many requests.
PER_CONNECTION = 100
CONNECTIONS = 100
# A replay that takes so much longer than the capture is ended.
LONGER_S = 60


@dataclass(frozen=True)
class Capture:
    file: Path
    # The same requests as GoReplay itself recorded them; nothing if it is not installed.
    of_goreplay: Optional[Path]
    n_requests: int
    span_s: float


@dataclass(frozen=True)
class Player:
    program: str
    speed: str
    words: Callable[[Lab, Capture], list[str]]
    # How many requests were lost, by its own words; nothing if it does not say.
    lost: Callable[[Finished], Optional[int]]
    remark: str = ""

    @property
    def name(self) -> str:
        return f"{Path(self.program).name}, {self.speed}"


def url(lab: Lab) -> str:
    return f"http://{lab.address[TARGET]}:{tools.NGINX_PORT}"


def fathom(speed: str) -> Player:
    def words(lab: Lab, capture: Capture) -> list[str]:
        where = ["--to", url(lab), "--allow", lab.address[TARGET], "--threads", "1"]
        return [lab.fathom, "replay", str(capture.file), *where, "--speed", speed, "--json", "--quiet"]

    def lost(finished: Finished) -> int:
        account = json.loads(finished.output)["tests"][0]["replay"]["all"]
        return account["n_recorded"] - account["n_answered"]

    return Player(fathom_program(), speed, words, lost)


def goreplay(what: str, of_input: Callable[[Capture], list[str]], remark: str) -> Player:
    """It does not end with its file, so it is told when to."""

    def words(lab: Lab, capture: Capture) -> list[str]:
        end = f"--exit-after={int(capture.span_s) + 10}s"
        return ["goreplay", *of_input(capture), f"--output-http={url(lab)}", end]

    return Player("goreplay", what, words, lambda _: None, f"{remark}; it ends when it is told to")


def pcap_of(capture: Capture) -> list[str]:
    return [f"--input-raw={capture.file}:{tools.NGINX_PORT}", "--input-raw-engine=pcap_file"]


def own_file_of(speed: str) -> Callable[[Capture], list[str]]:
    return lambda capture: ["--input-file", f"{capture.of_goreplay}{speed}"]


def tcpreplay(speed: str, *options: str) -> Player:
    def words(lab: Lab, capture: Capture) -> list[str]:
        return ["tcpreplay", "-i", lab.interface(GENERATOR), *options, str(capture.file)]

    remark = (
        "sends the recorded frames of both sides again, with their old sequence numbers and without reading answers: the target "
        "has no such connections and resets them. It is for devices that look at packets, not for servers; it counts frames"
    )
    return Player("tcpreplay", speed, words, lambda _: None, remark=remark)


PLAYERS = [
    fathom("max"),
    goreplay("100x", own_file_of("|10000%"), "its own recording, made beside tcpdump"),
    goreplay("capture, as it is read", pcap_of, "the capture of tcpdump"),
    tcpreplay("max", "--topspeed"),
    fathom("1x"),
    goreplay("1x", own_file_of(""), "its own recording, made beside tcpdump"),
    tcpreplay("1x"),
]


def n_logged(log: Path) -> int:
    with open(log, "rb") as lines:
        return sum(1 for _ in lines)


def settled(log: Path) -> int:
    """The lines of the log, once there are no more for a second."""
    before = n_logged(log)
    while True:
        time.sleep(1)
        if (now := n_logged(log)) == before:
            return now
        before = now


def record(lab: Lab, log: Path, n_requests: int, rate: int) -> Capture:
    """Captures requests on connections that are closed after so many each."""
    file = lab.folder / "recorded.pcap"
    device = lab.interface(GENERATOR)
    own_file = recorder = None
    if shutil.which("goreplay"):
        own_file = lab.folder / "recorded.gor"
        options = [f"--input-raw=:{tools.NGINX_PORT}", f"--output-file={own_file}", "--output-file-append", "--output-file-size-limit=10gb"]
        recorder = lab.start(TARGET, ["goreplay", *options])
        # It says nothing when it listens.
        time.sleep(2)
    # 64 MiB of packets may wait to be written.
    options = ["-Z", "root", "-i", device, "-s", "0", "-B", "65536", "-w", str(file), "tcp", "port", str(tools.NGINX_PORT)]
    sniffer = lab.start(GENERATOR, ["tcpdump", *options])
    lab.said("listening on")
    seconds = n_requests / rate
    load = ["--rate", str(rate), "--connections", str(CONNECTIONS), "--per-connection", str(PER_CONNECTION)]
    times = ["--warmup", "0s", "--duration", f"{round(seconds * 1000)}ms", "--rounds", "1", "--json", "--quiet"]
    page = f"{url(lab)}/{tools.FILE_BYTES}"
    lab.run(GENERATOR, [lab.fathom, "http", page, "--allow", lab.address[TARGET], *load, *times], longest_s=seconds + 60)
    n_recorded = settled(log)
    if recorder:
        # Its file is written once a second, and messages wait for two.
        time.sleep(4)
        lab.stop(recorder, signal.SIGINT)
    lab.stop(sniffer, signal.SIGINT)
    told = wait_for(lambda: re.search(r"(\d+) packets dropped by kernel", lab.said("")), 10, "the end of tcpdump")
    if told[1] != "0":
        raise Failed(f"the capture lacks {told[1]} packets: lower --rate")
    return Capture(file, own_file, n_recorded, seconds)


def row(lab: Lab, player: Player, capture: Capture, log: Path) -> str:
    if shutil.which(player.program) is None:
        return f"| {player.name} | not installed | | | | | | |"
    before = settled(log)
    try:
        finished = lab.run(GENERATOR, player.words(lab, capture), longest_s=capture.span_s + LONGER_S)
    except Failed as failure:
        return f"| {player.name} | {' '.join(str(failure).split())} | | | | | | |"
    n_delivered = settled(log) - before
    lost = player.lost(finished)
    cells = [
        player.name,
        f"{n_delivered:,} of {capture.n_requests:,}",
        f"{finished.wall_s:.1f} s",
        f"{finished.cpu_s / n_delivered * 1e6:.1f} µs" if n_delivered else f"– ({finished.cpu_s:.1f} s in all)",
        f"{finished.peak_bytes / 2**20:.0f} MiB",
        f"{capture.n_requests - n_delivered:,}",
        "it does not say" if lost is None else f"{lost:,}",
        player.remark,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000, help="how many are recorded (default: 200000)")
    parser.add_argument("--rate", type=int, default=20_000, help="how many a second while they are recorded (default: 20000)")
    parser.add_argument("--only", default="", help="only players whose name has this text")
    given = parser.parse_args()
    with Lab("bench-replay") as lab:
        log = lab.folder / "access.log"
        tools.serve_nginx(lab, f"{log} combined")
        capture = record(lab, log, given.requests, given.rate)
        size = capture.file.stat().st_size / 2**20
        print(f"{capture.n_requests:,} requests in {capture.span_s:.1f} s, {PER_CONNECTION} a connection: {size:.0f} MiB")
        print("\n| player | delivered, by the target's log | time | CPU per request delivered | memory | lost | lost, by its own words | remark |")
        print("|---|---|---|---|---|---|---|---|")
        for player in PLAYERS:
            if given.only in player.name:
                print(row(lab, player, capture, log), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
