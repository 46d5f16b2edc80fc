"""Two hosts of a lab, and programs that run on them with their own cost in processor time.

It knows nothing of what the programs measure. No program runs outside the lab's namespaces, and everything that was started
has ended when the lab is left, whichever way.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATOR = "a"
TARGET = "b"
# The generator has one core for itself and the target the other: what a rate costs can be told apart then.
CORES = {GENERATOR: 0, TARGET: 1}
# Longer than any comparison; a lab and a server whose parent was killed end by themselves then.
LIFETIME_S = 7200


class Failed(Exception):
    """A program did not do what it was started for."""


@dataclass(frozen=True)
class Finished:
    """What a program left: its output, and what it and all its children cost."""

    output: str
    errors: str
    cpu_s: float
    wall_s: float
    # The most memory of any one of its processes.
    peak_bytes: int


@dataclass(frozen=True)
class Counters:
    """An interface's counters at one moment."""

    at_s: float
    rx_bytes: int
    rx_frames: int
    rx_dropped: int
    tx_bytes: int
    tx_frames: int
    tx_dropped: int

    @property
    def offered(self) -> int:
        """Frames that were sent, or dropped on their way out."""
        return self.tx_frames + self.tx_dropped


def fathom_program() -> str:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release" / "fathom")


class Lab:
    """A lab of two hosts that is up while it is entered."""

    def __init__(self, name: str):
        self.name = name
        self.fathom = fathom_program()
        self.folder = Path(tempfile.mkdtemp(prefix="fathom-bench-"))
        self.address: dict[str, str] = {}
        # Of the `fathom serve` on the target, once there is one.
        self.key = ""
        self._servers: list[subprocess.Popen] = []
        self._witnesses: dict[str, int] = {}

    def __enter__(self) -> "Lab":
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(143))
        words = [self.fathom, "lab", "up", "pair", "--name", self.name, "--for", f"{LIFETIME_S}s"]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        for line in text.splitlines():
            _, host, address = line.split()
            self.address[host] = address
        return self

    def __exit__(self, *_):
        for server in list(self._servers):
            self.stop(server)
        subprocess.run([self.fathom, "lab", "down", self.name], check=False)
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)

    def words(self, host: str, words: list[str]) -> list[str]:
        return [self.fathom, "lab", "exec", self.name, host, "taskset", "-c", str(CORES[host]), *words]

    def run(self, host: str, words: list[str], longest_s: float = 60, exits: tuple[int, ...] = (0,)) -> Finished:
        """Runs a program to its end; its cost is that of all processes that it waited for."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            began = time.monotonic()
            process = subprocess.Popen(
                self.words(host, words), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
            self._servers.append(process)
            limit = threading.Timer(longest_s, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            try:
                _, status, usage = os.wait4(process.pid, 0)
            finally:
                limit.cancel()
            wall_s = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            self._servers.remove(process)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            # timeout says with 124 that it ended what was endless.
            if process.returncode not in (*exits, 124):
                told = (texts[1] or texts[0]).strip()[-600:]
                raise Failed(f"{words[0]} ended with {process.returncode}: {told}")
            return Finished(texts[0], texts[1], usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * 1024)

    def start(self, host: str, words: list[str]) -> subprocess.Popen:
        """Starts a server; its output is in the lab's folder under its process id."""
        log = self.folder / "server.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                self.words(host, ["timeout", "--foreground", str(LIFETIME_S), *words]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._servers.append(process)
        return process

    def stop(self, server: subprocess.Popen, with_signal: int = signal.SIGTERM):
        """Ends a server and all its children, which are one process group."""
        if server not in self._servers:
            return
        self._servers.remove(server)
        try:
            os.killpg(server.pid, with_signal)
            deadline = time.monotonic() + 5
            while is_alive(server) and time.monotonic() < deadline:
                time.sleep(0.02)
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.poll()

    @contextlib.contextmanager
    def serving(self):
        """Servers that are started within it end with it."""
        before = list(self._servers)
        try:
            yield
        finally:
            for server in [server for server in self._servers if server not in before]:
                self.stop(server)

    def said(self, what: str, longest_s: float = 10) -> str:
        """Waits until the newest server has said this; gives all it has said."""
        return wait_for(lambda: text if what in (text := (self.folder / "server.log").read_text()) else None, longest_s, what)

    def listens(self, port: int, longest_s: float = 10):
        """Waits until someone listens on a TCP port of the target."""
        self.listens_on(TARGET, port, longest_s)

    def listens_on(self, host: str, port: int, longest_s: float = 10):
        state = f":{port:04X} "

        def listening():
            sockets = self.run(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).output.splitlines()
            return any(state in line and line.split()[3] == "0A" for line in sockets) or None

        wait_for(listening, longest_s, f"port {port}")

    def counters(self, host: str) -> Counters:
        """The counters of a host's interface on the wire between the two, read without starting anything."""
        text = Path(f"/proc/{self.witness(host)}/net/dev").read_text()
        at_s = time.monotonic()
        _, values = next(line.split(":", 1) for line in text.splitlines()[2:] if not line.strip().startswith("lo:"))
        n = [int(value) for value in values.split()]
        return Counters(at_s, n[0], n[1], n[3], n[8], n[9], n[11])

    def interface(self, host: str) -> str:
        text = Path(f"/proc/{self.witness(host)}/net/dev").read_text()
        names = [line.split(":", 1)[0].strip() for line in text.splitlines()[2:]]
        return next(name for name in names if name != "lo")

    def witness(self, host: str) -> int:
        """A process that sleeps on the host, so that its counters can be read from here."""
        # It may have ended with the servers of an earlier comparison.
        if not Path(f"/proc/{self._witnesses.get(host)}/net/dev").exists():
            self.start(host, ["sh", "-c", f"echo witness $$; exec sleep {LIFETIME_S}"])
            self._witnesses[host] = int(self.said("\n").split()[1])
        return self._witnesses[host]

    def set(self, host: str, sysctl: str, value: str):
        """Sets a sysctl of the host's own network namespace, which ends with the lab."""
        path = "/proc/sys/net/" + sysctl.replace(".", "/")
        self.run(host, ["sh", "-c", f"echo '{value}' >{path}"])


def is_alive(process: subprocess.Popen) -> bool:
    """Whether any process of the group is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(what, longest_s: float, name: str):
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        if (found := what()) is not None:
            return found
        time.sleep(0.05)
    raise Failed(f"{name} has not come within {longest_s} s")


def busy_of_cores() -> list[tuple[int, int]]:
    """Busy and all time of each core so far, in ticks (/proc/stat)."""
    cores = []
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            ticks = [int(word) for word in line.split()[1:9]]
            cores.append((sum(ticks) - ticks[3] - ticks[4], sum(ticks)))
    return cores


def share_busy(before: list[tuple[int, int]], after: list[tuple[int, int]], core: int) -> float:
    busy, whole = (late - early for early, late in zip(before[core], after[core]))
    return busy / whole if whole else 0.0
