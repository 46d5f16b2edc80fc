#!/usr/bin/env python3
"""What connections, requests and users cost fathom in memory: user space of the process that asks, in one host of a lab.

Many connections need many source addresses, so they stay on the loopback of the host. What is told is anonymous memory
(RssAnon of /proc/PID/status); what the kernel holds for a socket is not the tool's.
"""

import argparse
import contextlib
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts import GENERATOR, Failed, Lab, wait_for

PORT = 8080
SOURCES = "127.0.0.0/27"
# The second as far as the hard limit of descriptors allows, which either end has.
FEW, MANY = 1_000, min(60_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1_000)
BYTES_MAX = 2048
GROWTH_MAX = 0.02
# What was promised is 20,000 users who think; each has a connection.
USERS = min(20_000, MANY)
USER_BYTES_MAX = 4096
# They come within this time, evenly: so at its half half of them are there, give or take.
RAMP_S = 10
RAMP_TOLERANCE = 0.05
SCENARIO = Path(__file__).with_name("scripts") / "thinking.scenario"


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise Failed(f"process {pid} has ended")


def descendants(of: int) -> list[int]:
    """All processes below one, which has started them or whose children have."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name stands in parentheses and may hold anything.
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, wanted = [], [of]
    while wanted:
        parent = wanted.pop()
        children = [pid for pid, above in parents.items() if above == parent]
        found += children
        wanted += children
    return found


def agent_of(started: int) -> int:
    """The process that measures, found by what it was started as."""

    def agent():
        for pid in descendants(started):
            with contextlib.suppress(OSError):
                if b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2]:
                    return pid
        return None

    return wait_for(agent, 10, "the agent")


def asking(lab: Lab, n_connections: int, seconds: int) -> subprocess.Popen:
    words = ["http", f"http://127.0.0.1:{PORT}/", "--source", SOURCES, "--connections", str(n_connections), "--threads", "1"]
    times = ["--warmup", "0s", "--duration", f"{seconds}s", "--rounds", "1", "--quiet", "--json"]
    return lab.start(GENERATOR, [lab.fathom, *words, *times])


def established(lab: Lab) -> int:
    """Connections of the host, both of whose ends are on it."""
    text = Path(f"/proc/{lab.witness(GENERATOR)}/net/sockstat").read_text()
    return int(text.split("TCP: inuse ")[1].split()[0]) // 2


def per_connection(lab: Lab) -> float:
    """The memory of many connections less that of few, per connection."""
    sizes = []
    for n_connections in (FEW, MANY):
        controller = asking(lab, n_connections, 30)
        agent = agent_of(controller.pid)
        wait_for(lambda: True if established(lab) >= n_connections else None, 25, f"{n_connections} connections")
        time.sleep(2)
        sizes.append(anonymous_bytes(agent))
        print(f"{n_connections} connections: {sizes[-1] / 2**20:.1f} MiB", file=sys.stderr)
        lab.stop(controller, signal.SIGINT)
        wait_for(lambda: True if established(lab) < FEW // 10 else None, 20, "the end of the connections")
    return (sizes[1] - sizes[0]) / (MANY - FEW)


def visiting(lab: Lab, n_users: int, seconds: int) -> subprocess.Popen:
    text = SCENARIO.read_text().replace("closed 100 for 3s", f"closed {n_users} ramp {RAMP_S}s for {seconds}s")
    scenario = lab.folder / "thinking.scenario"
    scenario.write_text(text)
    words = ["app", "run", str(scenario), "--source", SOURCES, "--threads", "1", "--warmup", "0s", "--rounds", "1"]
    return lab.start(GENERATOR, [lab.fathom, *words, "--quiet", "--json"])


def per_user(lab: Lab) -> tuple[float, float]:
    """The memory of many users less that of few, per user; and the share of them that was there at half of their ramp."""
    sizes, share = [], 0.0
    for n_users in (FEW, USERS):
        controller = visiting(lab, n_users, 3 * RAMP_S)
        agent = agent_of(controller.pid)
        wait_for(lambda: True if established(lab) > 0 else None, 25, "the first user")
        time.sleep(RAMP_S / 2)
        share = established(lab) / n_users
        # A population is whole when its ramp is over; a connection may still be under way then.
        wait_for(lambda: True if established(lab) >= n_users * 0.99 else None, RAMP_S, f"{n_users} users")
        time.sleep(5)
        sizes.append(anonymous_bytes(agent))
        print(f"{n_users} users: {sizes[-1] / 2**20:.1f} MiB, {share:.1%} of them at half of the ramp", file=sys.stderr)
        lab.stop(controller, signal.SIGINT)
        wait_for(lambda: True if established(lab) < FEW // 10 else None, 20, "the end of the connections")
    return (sizes[1] - sizes[0]) / (USERS - FEW), share


def growth(lab: Lab, seconds: int) -> tuple[int, int]:
    """The memory in the first tenth of a long run, and at its end."""
    controller = asking(lab, 100, seconds)
    agent = agent_of(controller.pid)
    time.sleep(seconds / 10)
    early = anonymous_bytes(agent)
    time.sleep(seconds * 0.85)
    late = anonymous_bytes(agent)
    lab.stop(controller, signal.SIGINT)
    return early, late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=120, help="length of the long run (default: 120, some ten million requests)")
    given = parser.parse_args()
    with Lab("bench-memory") as lab:
        lab.run(GENERATOR, ["ip", "link", "set", "lo", "up"])
        threads = ["--http-threads", "8"]
        lab.start(GENERATOR, [lab.fathom, "serve", "--only", "http", "--listen", "127.0.0.1", *threads])
        lab.listens_on(GENERATOR, PORT)
        of_user, share_at_half = per_user(lab)
        each = per_connection(lab)
        early, late = growth(lab, given.seconds)
    print(f"memory per connection: {each:.0f} bytes, aim ≤ {BYTES_MAX}: {'kept' if each <= BYTES_MAX else '**MISSED**'}")
    is_even = abs(share_at_half - 0.5) <= RAMP_TOLERANCE
    print(f"memory per user who thinks, of {USERS} on one core: {of_user:.0f} bytes, aim ≤ {USER_BYTES_MAX}: {'kept' if of_user <= USER_BYTES_MAX else '**MISSED**'}")
    print(f"users at half of the ramp: {share_at_half:.1%}: {'even' if is_even else '**A BURST**'}")
    share = late / early - 1
    print(f"memory over {given.seconds} s of requests: {early} to {late} bytes ({share:+.1%}): {'flat' if share <= GROWTH_MAX else '**GROWS**'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
