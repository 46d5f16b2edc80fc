"""The tools that are compared: how each is started for some seconds, and how its own words become work done.

A tool is a pair of functions. What it costs is measured around it, alike for all.
"""

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from hosts import GENERATOR, TARGET, Failed, Finished, Lab

AGENT_PORT = 7700
RESPONDER_PORT = 8080
NGINX_PORT = 8081
IPERF_PORT = 5201
NETPERF_PORT = 12865
CONNECTIONS = 100
FILE_BYTES = 612
DATAGRAM_BYTES = 1400
UDP_BITS_PER_S = 500_000_000
TRAFGEN = "trafgen"


@dataclass(frozen=True)
class Work:
    """What was done over the whole life of the tool, and how fast it was while it measured."""

    units: float
    per_s: float
    # Processor time of the threads that did the work, where the tool tells it.
    engine_s: Optional[float] = None
    # What the tool itself names as the bottleneck.
    limit: Optional[str] = None


@dataclass(frozen=True)
class Tool:
    name: str
    words: Callable[[Lab, float], list[str]]
    work: Callable[[Finished], Work]
    # What it says when it ends by itself for no fault of the comparison; such a run is made again, and the table says so.
    gives_up: Optional[str] = None


# --- fathom ---------------------------------------------------------------------------------------------------------------


def fathom(words: Callable[[Lab], list[str]], unit: str, rate: str) -> Tool:
    """fathom itself: its initiator's counter of the work, and its metric of the rate."""

    def command(lab: Lab, seconds: float) -> list[str]:
        times = ["--warmup", "500ms", "--duration", f"{round(seconds * 1000)}ms", "--rounds", "1"]
        return [lab.fathom, *words(lab), *times, "--json", "--quiet"]

    return Tool("fathom", command, lambda finished: fathom_work(json.loads(finished.output), unit, rate))


def fathom_work(run: dict, unit: str, rate: str) -> Work:
    test = run["tests"][0]
    if not test["trials"] or run["completeness"]["state"] != "complete":
        raise Failed(f"fathom measured nothing: {test.get('unavailable') or run['completeness']}")
    records = test["trials"][0]["records"].values()
    own = next(record for record in records if record["side"] == "initiator")
    if own["errors"]:
        raise Failed(f"fathom counted errors: {own['errors']}")
    findings = [f["title"] for f in run["findings"] if f["severity"] == "holds-back"]
    summary = next(summary for summary in test["summaries"] if summary["metric"]["name"] == rate)
    # Bits are told in bytes, as the counter of the work is.
    per_s = summary["value"] / (8 if summary["metric"]["unit"] == "bits_per_sec" else 1)
    return Work(own["totals"][unit], per_s, own["cpu_ns"] / 1e9, "; ".join(findings) or None)


def served(command: str, *words: str) -> Callable[[Lab], list[str]]:
    return lambda lab: [command, lab.address[TARGET], "--key", lab.key, *words]


def fathom_http(port: int) -> Tool:
    def words(lab: Lab) -> list[str]:
        address = lab.address[TARGET]
        return [
            *("http", f"http://{address}:{port}/{FILE_BYTES}", "--allow", address),
            *("--connections", str(CONNECTIONS), "--threads", "1"),
        ]

    return fathom(words, "requests", "requests_per_sec")


FATHOM_STREAM = fathom(served("tcp"), "bytes_sent", "throughput_bps")
FATHOM_RR = fathom(served("tcp", "--test", "rr"), "transactions", "transactions_per_sec")
FATHOM_CRR = fathom(served("tcp", "--test", "crr"), "transactions", "connections_per_sec")
FATHOM_UDP = fathom(
    served("udp", "--rate", str(UDP_BITS_PER_S), "--size", str(DATAGRAM_BYTES)), "sent", "received_per_sec"
)
FATHOM_FRAMES = fathom(served("packet", "--size", "64"), "sent", "received_per_sec")

# --- its peers ------------------------------------------------------------------------------------------------------------


def wrk(port: int) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        url = f"http://{lab.address[TARGET]}:{port}/{FILE_BYTES}"
        # It takes whole seconds.
        return ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{max(1, round(seconds))}s", url]

    def work(finished: Finished) -> Work:
        if told := re.search(r"Socket errors.*|Non-2xx.*", finished.output):
            raise Failed(f"wrk: {told[0]}")
        return Work(
            units=float(found(r"(\d+) requests in", finished)), per_s=float(found(r"Requests/sec:\s+([\d.]+)", finished))
        )

    return Tool("wrk", words, work)


def iperf3(*options: str) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        return ["iperf3", "-c", lab.address[TARGET], "-p", str(IPERF_PORT), "-t", str(max(1, round(seconds))), "-J", *options]

    def work(finished: Finished) -> Work:
        end = json.loads(finished.output)["end"]
        if "packets" in end.get("sum", {}):
            arrived = end["sum"]["packets"] - end["sum"]["lost_packets"]
            return Work(units=end["sum"]["packets"], per_s=arrived / end["sum"]["seconds"])
        # Sent bytes are its work; those that arrived are its rate.
        return Work(units=end["sum_sent"]["bytes"], per_s=end["sum_received"]["bits_per_second"] / 8)

    return Tool("iperf3", words, work)


def netperf(test: str) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        return [
            *("netperf", "-H", lab.address[TARGET], "-p", str(NETPERF_PORT), "-t", test, "-P", "0"),
            *("-l", str(max(1, round(seconds))), "--", "-r", "1,1", "-k", "THROUGHPUT,ELAPSED_TIME"),
        ]

    def work(finished: Finished) -> Work:
        per_s = float(found(r"THROUGHPUT=([\d.]+)", finished))
        return Work(units=per_s * float(found(r"ELAPSED_TIME=([\d.]+)", finished)), per_s=per_s)

    return Tool("netperf", words, work)


def trafgen(lab: Lab, seconds: float) -> list[str]:
    # One process, its ring past the queueing discipline, which is its default; nothing of the machine is tuned.
    options = ["--cpus", "1", "--no-sock-mem", "--notouch-irq", "--no-cpu-stats"]
    device = ["--dev", lab.interface(GENERATOR), "--conf", str(lab.folder / "frame.cfg")]
    # Its worker is a process of its own: both are to hear the signal, so timeout keeps them in a group, which ends by itself.
    return ["timeout", "--signal", "INT", str(seconds), "trafgen", *device, *options]


def trafgen_work(finished: Finished) -> Work:
    # Its rate is not told; the interface of the receiver tells that of both tools.
    return Work(units=float(found(r"(\d+)\s+packets outgoing", finished)), per_s=0.0)


# A socket buffer that is full for a moment is fatal to it.
TRAFGEN_FRAMES = Tool(TRAFGEN, trafgen, trafgen_work, gives_up="Flushing TX_RING failed")


def found(pattern: str, finished: Finished) -> str:
    if not (match := re.search(pattern, finished.output + finished.errors)):
        raise Failed(f"no {pattern} in: {finished.output[-300:]}{finished.errors[-300:]}")
    return match[1]


# --- targets --------------------------------------------------------------------------------------------------------------


def serve_nginx(lab: Lab):
    """The lightest honest target: one worker, one small file, nothing logged, connections that stay."""
    prefix = lab.folder / "nginx"
    (prefix / "html").mkdir(parents=True, exist_ok=True)
    (prefix / "html" / str(FILE_BYTES)).write_bytes(b"x" * FILE_BYTES)
    # The worker runs as the user who started it, who may read the folder.
    (prefix / "nginx.conf").write_text(
        f"""
        user root; worker_processes 1; daemon off; pid {prefix}/pid; error_log {prefix}/error.log;
        events {{ worker_connections 1024; }}
        http {{
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 300s;
            client_body_temp_path {prefix}/1; proxy_temp_path {prefix}/2; fastcgi_temp_path {prefix}/3;
            uwsgi_temp_path {prefix}/4; scgi_temp_path {prefix}/5;
            server {{ listen {NGINX_PORT} backlog=1024; root {prefix}/html; }}
        }}
        """
    )
    lab.start(TARGET, ["nginx", "-p", str(prefix), "-c", str(prefix / "nginx.conf")])
    lab.listens(NGINX_PORT)


def serve_fathom(lab: Lab):
    """Agents and the HTTP responder of fathom; one for the whole comparison."""
    lab.start(TARGET, [lab.fathom, "serve"])
    lab.key = re.search(r"key\s+(\S+)", lab.said("http "))[1]


def serve_iperf3(lab: Lab):
    lab.start(TARGET, ["iperf3", "-s", "-p", str(IPERF_PORT)])
    lab.listens(IPERF_PORT)


def serve_netperf(lab: Lab):
    lab.start(TARGET, ["netserver", "-D", "-4", "-L", lab.address[TARGET], "-p", str(NETPERF_PORT)])
    lab.listens(NETPERF_PORT)


# --- the sink of frames, for a generator that is not fathom ---------------------------------------------------------------


class Sink:
    """fathom's counting sink on the target's interface while it is entered, and the frame that it knows in a file.

    A fathom that sends ten frames a second holds it there. One of them is caught on its way out, and trafgen repeats it: byte for
    byte what fathom sends, but always the same number, so that the sink counts copies.
    """

    # Longer than all attempts of one sample; it is ended before.
    LONGEST_S = 120

    def __init__(self, lab: Lab):
        self.lab = lab

    def __enter__(self) -> "Sink":
        lab = self.lab
        pace = ["--rate", "10", "--qdisc", "--warmup", "0ms", "--duration", f"{self.LONGEST_S}s", "--rounds", "1"]
        self.holder = lab.start(GENERATOR, [lab.fathom, *served("packet")(lab), "--size", "64", *pace, "--quiet", "--json"])
        catcher = Path(__file__).with_name("catch_frame.py")
        caught = lab.run(GENERATOR, ["python3", str(catcher), lab.interface(GENERATOR)]).output.split()
        (lab.folder / "frame.cfg").write_text("{ " + ", ".join(f"0x{byte}" for byte in caught) + " }\n")
        return self

    def __exit__(self, *_):
        self.lab.stop(self.holder, signal.SIGINT)
