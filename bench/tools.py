"""The tools that are compared: how each is started for some seconds, and how its own words become work done.

A tool is a pair of functions. What it costs is measured around it, alike for all.
"""

import json
import re
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Optional

from hosts import GENERATOR, TARGET, Failed, Finished, Lab, fathom_program

AGENT_PORT = 7700
RESPONDER_PORT = 8080
NGINX_PORT = 8081
IPERF_PORT = 5201
FACE_PORT = 5211
NETPERF_PORT = 12865
SOCKPERF_PORT = 11111
CONNECTIONS = 100
FILE_BYTES = 612
TLS_PORT = 8443
SHOP_PORT = 8082
# What the shop gives to whoever logs in, and asks for afterwards.
TOKEN = "eyJhbGciOiJub25lIn0.c2hvcA"
SCRIPTS = Path(__file__).with_name("scripts")
DATAGRAM_BYTES = 1400
UDP_BITS_PER_S = 500_000_000
TRAFGEN = "trafgen"
# Where nothing is aimed at.
NO_TARGET = "–"
HPING = "hping3"


@dataclass(frozen=True)
class Work:
    """What was done over the whole life of the tool, and how fast it was while it measured."""

    units: float
    per_s: float
    # Processor time of the threads that did the work, where the tool tells it.
    engine_s: Optional[float] = None
    # What the tool itself names as the bottleneck.
    limit: Optional[str] = None
    # Processor time of the threads at the other end, where the tool tells it.
    target_s: Optional[float] = None


@dataclass(frozen=True)
class Tool:
    name: str
    words: Callable[[Lab, float], list[str]]
    work: Callable[[Finished], Work]
    # What it says when it ends by itself for no fault of the comparison; such a run is made again, and the table says so.
    gives_up: Optional[str] = None
    # What must be installed, where that is not its name.
    program: Optional[str] = None
    # A virtual machine is slow until it has compiled what is hot: so many seconds of a run are left out, with what they cost.
    start_s: float = 0
    # The exit codes of a run that counts.
    exits: tuple[int, ...] = (0,)

    @property
    def is_there(self) -> bool:
        return shutil.which(self.program or self.name) is not None


# --- fathom ---------------------------------------------------------------------------------------------------------------


def fathom(words: Callable[[Lab], list[str]], unit: str, rate: str) -> Tool:
    """fathom itself: its initiator's counter of the work, and its metric of the rate."""

    def command(lab: Lab, seconds: float) -> list[str]:
        times = ["--warmup", "500ms", "--duration", f"{round(seconds * 1000)}ms", "--rounds", "1"]
        return [lab.fathom, *words(lab), *times, "--json", "--quiet"]

    work = lambda finished: fathom_work(json.loads(finished.output), unit, rate)
    return Tool("fathom", command, work, program=fathom_program())


def fathom_work(run: dict, unit: str, rate: str) -> Work:
    test = run["tests"][0]
    if not test["trials"] or run["completeness"]["state"] != "complete":
        raise Failed(f"fathom measured nothing: {test.get('unavailable') or run['completeness']}")
    records = test["trials"][0]["records"].values()
    own = next(record for record in records if record["side"] == "initiator")
    other = next((record for record in records if record["side"] == "responder"), None)
    if own["errors"]:
        raise Failed(f"fathom counted errors: {own['errors']}")
    findings = [f["title"] for f in run["findings"] if f["severity"] == "holds-back"]
    summary = next(summary for summary in test["summaries"] if summary["metric"]["name"] == rate)
    # Bits are told in bytes, as the counter of the work is.
    per_s = summary["value"] / (8 if summary["metric"]["unit"] == "bits_per_sec" else 1)
    target_s = other["cpu_ns"] / 1e9 if other else None
    return Work(own["totals"][unit], per_s, own["cpu_ns"] / 1e9, "; ".join(findings) or None, target_s)


def served(command: str, *words: str) -> Callable[[Lab], list[str]]:
    return lambda lab: [command, lab.address[TARGET], "--key", lab.key, *words]


@dataclass(frozen=True)
class Page:
    """What is asked of an HTTP server on the target, by how many connections."""

    port: int
    size: int = FILE_BYTES
    scheme: str = "http"
    connections: int = CONNECTIONS
    # Its name, where that is not its size.
    path: Optional[str] = None

    def url(self, lab: Lab) -> str:
        return f"{self.scheme}://{lab.address[TARGET]}:{self.port}/{self.path or self.size}"


def fathom_http(page: Page, *options: str, unit: str = "requests", rate: str = "requests_per_sec") -> Tool:
    def words(lab: Lab) -> list[str]:
        common = ["--allow", lab.address[TARGET], "--connections", str(page.connections), "--threads", "1"]
        return ["http", page.url(lab), *common, *options]

    return fathom(words, unit, rate)


def fathom_scenario() -> Tool:
    """The shop's users, as many as connections elsewhere; serve_shop has written the scenario."""

    def words(lab: Lab) -> list[str]:
        return ["app", "run", str(lab.folder / "shop.scenario"), "--allow", lab.address[TARGET], "--threads", "1"]

    return fathom(words, "requests", "requests_per_sec")


def fathom_as_wrk(page: Page, script: Optional[str] = None) -> Tool:
    """The face, so that both are given the same words and tell the same ones."""
    theirs = wrk(page, script)

    def words(lab: Lab, seconds: float) -> list[str]:
        return ["env", f"FATHOM_ALLOW={lab.address[TARGET]}", lab.fathom, "as", *theirs.words(lab, seconds)]

    return Tool("fathom as wrk", words, theirs.work, program=fathom_program())




def fathom_stream(*options: str, name: str = "fathom") -> Tool:
    return replace(fathom(served("tcp", *options), "bytes_sent", "throughput_bps"), name=name)


FATHOM_RR = fathom(served("tcp", "--test", "rr"), "transactions", "transactions_per_sec")
# The shortest message that sockperf has.
SOCKPERF_BYTES = 14
SOCKPERF_SIZES = ["--request", str(SOCKPERF_BYTES), "--response", str(SOCKPERF_BYTES)]
FATHOM_RR_LIKE_SOCKPERF = fathom(served("tcp", "--test", "rr", *SOCKPERF_SIZES), "transactions", "transactions_per_sec")
# As many processes of netperf are what people start who want that many flows.
MANY_FLOWS = 300
FATHOM_RR_MANY = fathom(
    served("tcp", "--test", "rr", "--flows", str(MANY_FLOWS), "--threads", "1"), "transactions", "transactions_per_sec"
)
FATHOM_UDP_RR = fathom(served("udp", "--test", "rr"), "transactions", "transactions_per_sec")
FATHOM_UDP_RR_LIKE_SOCKPERF = fathom(served("udp", "--test", "rr", *SOCKPERF_SIZES), "transactions", "transactions_per_sec")
FATHOM_CRR = fathom(served("tcp", "--test", "crr"), "transactions", "connections_per_sec")


def fathom_udp(*options: str) -> Tool:
    return fathom(served("udp", *options), "sent", "received_per_sec")


FATHOM_UDP = fathom_udp("--rate", str(UDP_BITS_PER_S), "--size", str(DATAGRAM_BYTES))
FATHOM_UDP_BURSTS = fathom_udp("--rate", str(UDP_BITS_PER_S), "--size", str(DATAGRAM_BYTES), "--traffic", "bursts")


def fathom_frames(*words: str, name: str = "fathom") -> Tool:
    return replace(fathom(served("packet", "--size", "64", *words), "sent", "received_per_sec"), name=name)



# --- its peers ------------------------------------------------------------------------------------------------------------


def whole(seconds: float) -> int:
    """For tools that take no other."""
    return max(1, round(seconds))


def wrk(page: Page, script: Optional[str] = None, is_by_bytes: bool = False) -> Tool:
    scripted = ["-s", str(SCRIPTS / script)] if script else []

    def words(lab: Lab, seconds: float) -> list[str]:
        return ["wrk", "-t", "1", "-c", str(page.connections), "-d", f"{whole(seconds)}s", *scripted, page.url(lab)]

    def work(finished: Finished) -> Work:
        if told := re.search(r"Socket errors.*|Non-2xx.*", finished.output):
            raise Failed(f"wrk: {told[0]}")
        scale = page.size if is_by_bytes else 1
        n_requests, per_s = found(r"(\d+) requests in", finished), found(r"Requests/sec:\s+([\d.]+)", finished)
        return Work(units=float(n_requests) * scale, per_s=float(per_s) * scale)

    return Tool("wrk", words, work)


def wrk2(page: Page, rate: int) -> Tool:
    """At a rate. Its first 10 s are for its calibration, but requests and processor time are of the whole run."""
    plain = wrk(page)

    def words(lab: Lab, seconds: float) -> list[str]:
        _, *others = plain.words(lab, seconds)
        return ["wrk2", "-R", str(rate), *others]

    return Tool("wrk2", words, plain.work)


def ab(page: Page, *options: str) -> Tool:
    """One thread. It ends after its time or its number of requests, whichever comes first."""

    def words(lab: Lab, seconds: float) -> list[str]:
        return ["ab", "-q", *options, "-c", str(page.connections), "-t", str(whole(seconds)), "-n", "100000000", page.url(lab)]

    def work(finished: Finished) -> Work:
        if found(r"Failed requests:\s+(\d+)", finished) != "0" or "Non-2xx" in finished.output:
            raise Failed("ab counted requests that failed")
        n_requests, per_s = found(r"Complete requests:\s+(\d+)", finished), found(r"Requests per second:\s+([\d.]+)", finished)
        return Work(units=float(n_requests), per_s=float(per_s))

    return Tool("ab", words, work)


def h2load(page: Page) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        return ["h2load", "--h1", "-t", "1", "-c", str(page.connections), "-D", str(whole(seconds)), page.url(lab)]

    def work(finished: Finished) -> Work:
        per_s = float(found(r"finished in [\d.]+\w+, ([\d.]+) req/s", finished))
        n_done, n_failed = found(r"(\d+) done", finished), found(r"(\d+) failed", finished)
        if n_failed != "0":
            raise Failed(f"h2load counted {n_failed} requests that failed")
        return Work(units=float(n_done), per_s=per_s)

    return Tool("h2load", words, work)


def hey(page: Page) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        return ["hey", "-cpus", "1", "-c", str(page.connections), "-z", f"{whole(seconds)}s", page.url(lab)]

    def work(finished: Finished) -> Work:
        answers = re.findall(r"\[(\d+)\]\s+(\d+) responses", finished.output)
        if [status for status, _ in answers] != ["200"]:
            raise Failed(f"hey saw {answers}")
        per_s = float(found(r"Requests/sec:\s+([\d.]+)", finished))
        # It keeps no more than a million results, so the number is told by the rate and the time.
        return Work(units=per_s * float(found(r"Total:\s+([\d.]+) secs", finished)), per_s=per_s)

    return Tool("hey", words, work)


def jmeter(plan: str) -> Tool:
    """Without its window, and without a file of results."""

    def words(lab: Lab, seconds: float) -> list[str]:
        values = {
            "host": lab.address[TARGET],
            "port": SHOP_PORT,
            "users": CONNECTIONS,
            "seconds": whole(seconds),
            "accounts": SCRIPTS / "accounts.csv",
        }
        properties = [f"-J{name}={value}" for name, value in values.items()]
        return ["jmeter", "-n", "-t", str(SCRIPTS / plan), "-j", str(lab.folder / "jmeter.log"), *properties]

    def work(finished: Finished) -> Work:
        # The last summary is that of the whole run; there are others when it is long.
        told = re.findall(r"summary =\s+(\d+) in [\d:]+ =\s+([\d.]+)/s .*Err:\s+(\d+)", finished.output)
        if not told or told[-1][2] != "0":
            raise Failed(f"jmeter told {told[-1:]}: {finished.output[-300:]}")
        return Work(units=float(told[-1][0]), per_s=float(told[-1][1]))

    return Tool("jmeter", words, work, start_s=15)


def iperf3(*options: str, face: bool = False) -> Tool:
    """iperf3's client, or `fathom as iperf3` towards a server of its own kind."""

    def words(lab: Lab, seconds: float) -> list[str]:
        tool, port = ([lab.fathom, "as", "iperf3"], FACE_PORT) if face else (["iperf3"], IPERF_PORT)
        return [*tool, "-c", lab.address[TARGET], "-p", str(port), "-t", str(whole(seconds)), "-J", *options]

    def work(finished: Finished) -> Work:
        end = json.loads(finished.output)["end"]
        if "packets" in end.get("sum", {}):
            arrived = end["sum"]["packets"] - end["sum"]["lost_packets"]
            return Work(units=end["sum"]["packets"], per_s=arrived / end["sum"]["seconds"])
        # Sent bytes are its work; those that arrived are its rate.
        return Work(units=end["sum_sent"]["bytes"], per_s=end["sum_received"]["bits_per_second"] / 8)

    return Tool("fathom as iperf3" if face else "iperf3", words, work)


def netperf(test: str) -> Tool:
    def words(lab: Lab, seconds: float) -> list[str]:
        return [
            *("netperf", "-H", lab.address[TARGET], "-p", str(NETPERF_PORT), "-t", test, "-P", "0"),
            *("-l", str(whole(seconds)), "--", "-r", "1,1", "-k", "THROUGHPUT,ELAPSED_TIME"),
        ]

    def work(finished: Finished) -> Work:
        per_s = float(found(r"THROUGHPUT=([\d.]+)", finished))
        return Work(units=per_s * float(found(r"ELAPSED_TIME=([\d.]+)", finished)), per_s=per_s)

    return Tool("netperf", words, work)


def many_netperfs(n: int) -> Tool:
    """So many processes at once, each with one flow; their rates are added up."""
    one = netperf("TCP_RR")

    def words(lab: Lab, seconds: float) -> list[str]:
        each = " ".join(one.words(lab, seconds))
        return ["sh", "-c", f"for i in $(seq {n}); do {each} & done; wait"]

    def work(finished: Finished) -> Work:
        rates = [float(rate) for rate in re.findall(r"THROUGHPUT=([\d.]+)", finished.output)]
        times = [float(time) for time in re.findall(r"ELAPSED_TIME=([\d.]+)", finished.output)]
        if len(rates) != n or len(times) != n:
            raise Failed(f"{len(rates)} of {n} netperfs told a rate")
        return Work(units=sum(rate * time for rate, time in zip(rates, times)), per_s=sum(rates))

    return Tool(f"{n} × netperf", words, work, program="netperf")


def sockperf(*protocol: str) -> Tool:
    """Ping-pong, each round trip on its own; `--tcp`, or nothing for UDP."""

    def words(lab: Lab, seconds: float) -> list[str]:
        where = ["-i", lab.address[TARGET], "-p", str(SOCKPERF_PORT), *protocol]
        return ["sockperf", "ping-pong", *where, "-t", str(whole(seconds)), "-m", str(SOCKPERF_BYTES), "--full-rtt"]

    def work(finished: Finished) -> Work:
        n_all = float(found(r"\[Total Run\].*?ReceivedMessages=(\d+)", finished))
        # Without what it leaves out at either end.
        n_valid, seconds = (
            float(found(rf"\[Valid Duration\].*?{what}=([\d.]+)", finished)) for what in ("ReceivedMessages", "RunTime")
        )
        return Work(units=n_all, per_s=n_valid / seconds)

    return Tool("sockperf", words, work)


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


def hping(lab: Lab, seconds: float) -> list[str]:
    # The payload is the mark that the sink knows, so that its frames end where all others do.
    what = ["--udp", "--flood", "--quiet", "--destport", "9", "--data", str(MARK_BYTES), "--file", str(lab.folder / "mark")]
    return ["timeout", "--signal", "INT", str(seconds), "hping3", *what, lab.address[TARGET]]


def hping_work(finished: Finished) -> Work:
    return Work(units=float(found(r"(\d+) packets transmitted", finished)), per_s=0.0)


HPING_FRAMES = Tool(HPING, hping, hping_work)
# What a frame of 64 bytes carries behind the headers of Ethernet, IPv4 and UDP.
MARK_BYTES = 18


def found(pattern: str, finished: Finished) -> str:
    if not (match := re.search(pattern, finished.output + finished.errors)):
        raise Failed(f"no {pattern} in: {finished.output[-300:]}{finished.errors[-300:]}")
    return match[1]


# --- targets --------------------------------------------------------------------------------------------------------------


SIZES = (FILE_BYTES, 64 * 2**10, 2**20)


def serve_nginx(lab: Lab, access_log: str = "off", events: str = "worker_connections 1024;"):
    """The lightest honest target: one worker, small files, nothing logged unless asked for, connections that stay."""
    prefix = lab.folder / "nginx"
    (prefix / "html").mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        (prefix / "html" / str(size)).write_bytes(b"x" * size)
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(prefix / "key.pem"), "-out", str(prefix / "certificate.pem")]
    lab.run(TARGET, [*certificate, *files, "-days", "2", "-subj", "/CN=bench"])
    # The worker runs as the user who started it, who may read the folder.
    (prefix / "nginx.conf").write_text(
        f"""
        user root; worker_processes 1; worker_rlimit_nofile 100000; daemon off; pid {prefix}/pid; error_log {prefix}/error.log;
        events {{ {events} }}
        http {{
            access_log {access_log}; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 300s;
            client_body_temp_path {prefix}/1; proxy_temp_path {prefix}/2; fastcgi_temp_path {prefix}/3;
            uwsgi_temp_path {prefix}/4; scgi_temp_path {prefix}/5;
            ssl_certificate {prefix}/certificate.pem; ssl_certificate_key {prefix}/key.pem;
            server {{ listen {NGINX_PORT} backlog=1024; listen {TLS_PORT} ssl backlog=1024; root {prefix}/html; }}
        }}
        """
    )
    lab.start(TARGET, ["nginx", "-p", str(prefix), "-c", str(prefix / "nginx.conf")])
    lab.listens(NGINX_PORT)


def serve_shop(lab: Lab):
    """A shop that is honest in that it wants its token, and light in that it knows all its answers."""
    prefix = lab.folder / "shop"
    prefix.mkdir(exist_ok=True)
    pages = {
        "/catalog": '{"items":[1,2,42]}',
        "/item/42": '{"id":42,"price":990}',
        "/cart": '{"lines":[],"total":0}',
        "/account": '{"name":"A. Buyer"}',
    }
    locations = "".join(
        f"location = {path} {{ if ($is_known = 0) {{ return 401; }} return 200 '{text}'; }}\n" for path, text in pages.items()
    )
    (prefix / "nginx.conf").write_text(
        f"""
        user root; worker_processes 1; daemon off; pid {prefix}/pid; error_log {prefix}/error.log;
        events {{ worker_connections 32768; }}
        worker_rlimit_nofile 65536;
        http {{
            access_log off; keepalive_requests 1000000000; keepalive_timeout 300s; default_type application/json;
            client_body_temp_path {prefix}/1; proxy_temp_path {prefix}/2; fastcgi_temp_path {prefix}/3;
            uwsgi_temp_path {prefix}/4; scgi_temp_path {prefix}/5;
            map $http_authorization $is_known {{ default 0; "Bearer {TOKEN}" 1; }}
            server {{
                listen {SHOP_PORT} backlog=4096;
                location = /login {{
                    if ($request_method != POST) {{ return 405; }}
                    return 200 '{{"token":"{TOKEN}","expires_in":3600}}';
                }}
                {locations}
            }}
        }}
        """
    )
    lab.start(TARGET, ["nginx", "-p", str(prefix), "-c", str(prefix / "nginx.conf")])
    lab.listens(SHOP_PORT)
    scenario = (SCRIPTS / "shop.scenario").read_text().replace("127.0.0.1", lab.address[TARGET])
    (lab.folder / "shop.scenario").write_text(scenario)
    shutil.copy(SCRIPTS / "accounts.csv", lab.folder)


def serve_fathom(lab: Lab):
    """Agents and the HTTP responder of fathom; one for the whole comparison."""
    lab.start(TARGET, [lab.fathom, "serve"])
    lab.key = re.search(r"key\s+(\S+)", lab.said("http "))[1]


def serve_iperf3(lab: Lab):
    lab.start(TARGET, ["iperf3", "-s", "-p", str(IPERF_PORT)])
    lab.listens(IPERF_PORT)


def serve_both_iperf3(lab: Lab):
    serve_iperf3(lab)
    lab.start(TARGET, [lab.fathom, "as", "iperf3", "-s", "-p", str(FACE_PORT)])
    lab.listens(FACE_PORT)


def serve_netperf(lab: Lab):
    lab.start(TARGET, ["netserver", "-D", "-4", "-L", lab.address[TARGET], "-p", str(NETPERF_PORT)])
    lab.listens(NETPERF_PORT)


def serve_sockperf(*protocol: str) -> Callable[[Lab], None]:
    def serve(lab: Lab):
        where = ["-i", lab.address[TARGET], "-p", str(SOCKPERF_PORT), *protocol]
        lab.start(TARGET, ["sockperf", "server", *where])
        lab.said("block on socket")

    return serve


# --- the sink of frames, for a generator that is not fathom ---------------------------------------------------------------


class Sink:
    """fathom's counting sink on the target's interface while it is entered, and the frame that it knows in a file.

    A fathom that sends ten frames a second holds it there. One of them is caught on its way out, and trafgen repeats it: byte for
    byte what fathom sends, but always the same number, so that the sink counts copies. hping3 repeats what it carries.
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
        (lab.folder / "mark").write_bytes(bytes.fromhex("".join(caught))[-MARK_BYTES:])
        (lab.folder / "frame.cfg").write_text("{ " + ", ".join(f"0x{byte}" for byte in caught) + " }\n")
        return self

    def __exit__(self, *_):
        self.lab.stop(self.holder, signal.SIGINT)
