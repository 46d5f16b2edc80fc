//! `fathom watch` on a host whose traffic is known to the byte, live and from its recording.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fathom_model::units::approximate;
use fathom_sys::process::signal::Signal;
use serde_json::Value;

use crate::test_bed::{TestBed, lacks_root};

/// Datagrams to a port that nobody listens on, each with the headers of UDP, IPv4 and Ethernet.
const SENT: u64 = 1_000;
const PAYLOAD_BYTES: usize = 958;
const FRAME_BYTES: u64 = 958 + 8 + 20 + 14;

fn intervals(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A connection that carries 1,000 bytes every 10 ms until it is dropped, to a listener that does not read them. Connections are read less often
/// the more of them a machine has, so a burst may fall between two readings.
struct BusyConnection {
    is_over: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
}

impl BusyConnection {
    fn to(listener: SocketAddr) -> Self {
        let mut connection = TcpStream::connect(listener).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let writer = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && connection.write_all(&[7; 1_000]).is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
        Self { is_over, writer: Some(writer) }
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.writer.take().into_iter().for_each(|writer| drop(writer.join()));
    }
}

/// Sums a rate per second over all intervals.
fn sum(intervals: &[Value], table: &str, row: &str, column: &str) -> f64 {
    let of = |interval: &Value| {
        let seconds = interval["interval_ns"].as_f64().unwrap() / 1e9;
        interval["tables"][table][row][column].as_f64().unwrap() * seconds
    };
    intervals.iter().map(of).sum()
}

#[test]
fn every_byte_that_arrives_is_in_an_interval_and_a_replay_shows_the_same() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("pair");
    let kept = stage.path("watched.ndjson");
    let file = kept.to_str().unwrap();
    let watch = lab.start("b", &["watch", "--interval", "100ms", "--count", "20", "--ndjson", "--record", file]);
    watch.says("{");
    lab.enter_with("a", || {
        let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
        for _ in 0..SENT {
            // The refusals of the other host are errors of later sends.
            while socket.send_to(&[7; PAYLOAD_BYTES], "198.18.0.2:9").is_err() {}
        }
    });
    let live = watch.ends().succeeded().stdout;
    let seen = intervals(&live);
    assert_eq!(seen.len(), 20);
    let bytes = sum(&seen, "interfaces", "eth0", "rx_bps") / 8.0;
    let sent = approximate(SENT * FRAME_BYTES);
    // Neighbors are looked up meanwhile.
    assert!((sent - 1.0..sent + 2_000.0).contains(&bytes), "{bytes} bytes, and {sent} were sent");
    let refused = sum(&seen, "udp", "", "no_listener_per_sec");
    assert!((refused - approximate(SENT)).abs() < 0.5, "{refused} of {SENT} found no listener");

    let again = stage.fathom(["watch", "--replay", file, "--ndjson"]).succeeded().stdout;
    let tables = |text: &str| intervals(text).into_iter().map(|mut line| line["tables"].take()).collect::<Vec<_>>();
    assert_eq!(tables(&again), tables(&live));
    let text = stage.fathom(["watch", "--replay", file, "--count", "1"]).succeeded().stdout;
    assert!(text.contains("interface") && text.contains("cpu0"), "{text}");

    // A recording is never written over, and one that is damaged is refused with its line.
    stage.fathom(["watch", "--once", "--record", file]).refused(3, &["File exists", "name a new file"]);
    let mut whole = String::new();
    fs::File::open(&kept).unwrap().read_to_string(&mut whole).unwrap();
    fs::write(&kept, whole.replacen("\"at_ns\"", "\"at\"", 1)).unwrap();
    stage.fathom(["watch", "--replay", file]).refused(2, &["line 2: column "]);
}

#[test]
fn connections_that_wait_for_accept_and_those_that_move_bytes_are_shown_and_are_no_part_of_a_recording() {
    // The busiest connections are those of the whole machine.
    let stage = TestBed::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let _waiting = TcpStream::connect(here).unwrap();
    let _busy = BusyConnection::to(here);
    let kept = stage.path("sockets.ndjson");
    let file = kept.to_str().unwrap();
    let watch = stage.start(["watch", "--interval", "100ms", "--count", "600", "--ndjson", "--record", file]);
    watch.says("{");
    let _third = TcpStream::connect(here).unwrap();
    let address = |value: &Value| value.as_str().is_some_and(|text| text == here.to_string());
    let waiting = |view: &Value| {
        let listeners = view["listeners"].as_array().unwrap().clone();
        listeners.into_iter().find(|listener| address(&listener["address"])).unwrap()
    };
    // Sockets are read less often the more of them the machine has.
    watch.shows(|line| serde_json::from_str(line).is_ok_and(|view: Value| waiting(&view)["n_waiting"] == 3));
    watch.handle().send(Signal::Interrupt).unwrap();
    let seen = intervals(&watch.ends().stdout);
    assert_eq!(waiting(&seen[0])["n_waiting"], 2);
    assert_eq!(waiting(seen.last().unwrap())["is_full"], false);
    let busiest = seen.iter().flat_map(|view| view["sockets"]["busiest"].as_array().unwrap().clone());
    let sender = busiest.into_iter().find(|socket| address(&socket["peer"])).expect("the sender is among the busiest");
    assert!(sender["rate_tx_bps"].as_f64().unwrap() > 0.0 && sender["rtt_ns"].is_u64(), "{sender}");
    let again = stage.fathom(["watch", "--replay", file, "--ndjson", "--count", "1"]).succeeded().stdout;
    assert!(!again.contains("\"sockets\":{") && !again.contains("\"listeners\""), "{again}");
}

#[test]
fn what_cannot_be_obeyed_is_refused_with_what_can() {
    let stage = TestBed::beside_others();
    stage.fathom(["watch", "--once", "--count", "3"]).refused(2, &["--once", "--count"]);
    stage.fathom(["watch", "--json", "--count", "3"]).refused(2, &["--json", "--count"]);
    stage.fathom(["watch", "--metrics", "127.0.0.1"]).refused(2, &["ADDRESS:PORT"]);
    stage.fathom(["watch", "--queues", "lo", "--json"]).refused(2, &["no JSON form", "--ndjson"]);
    stage.fathom(["watch", "--host", "192.0.2.1", "--key-file", "/etc/passwd", "--once"]).refused(2, &["is not a key"]);
}

#[test]
fn a_scraper_gets_the_counters_while_they_are_watched() {
    let stage = TestBed::beside_others();
    let watch = stage.start(["watch", "--metrics", "127.0.0.1:0", "--ndjson", "--count", "50", "--interval", "100ms"]);
    let told = watch.warns("/metrics");
    watch.says("{");
    let address = told.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut scraper = TcpStream::connect(address).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("# TYPE fathom_dev_rx_bytes counter"), "{answer}");
    assert!(answer.contains("fathom_cpu_idle_seconds_total{of=\"cpu0\"}"), "{answer}");
    assert!(answer.contains("# TYPE fathom_sock_tcp_in_use gauge"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[test]
fn a_host_of_a_lab_and_a_served_host_are_watched_by_an_agent_there() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("watched");
    let kept = stage.path("elsewhere.ndjson");
    let words = ["watch", "--lab", lab.name, "--host", "b", "--interval", "100ms", "--count", "20", "--ndjson"];
    let watch = stage.start(words.into_iter().chain(["--record", kept.to_str().unwrap()]));
    watch.says("{");
    lab.enter_with("a", || {
        let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
        for _ in 0..SENT {
            while socket.send_to(&[7; PAYLOAD_BYTES], "198.18.0.2:9").is_err() {}
        }
    });
    let seen = intervals(&watch.ends().succeeded().stdout);
    let refused = sum(&seen, "udp", "", "no_listener_per_sec");
    assert!((refused - approximate(SENT)).abs() < 0.5, "{refused} of {SENT} found no listener");
    assert_eq!(seen[0]["host"], "b of lab watched");
    assert!(seen[1].get("sockets").is_some() && seen[1].get("losses").is_none(), "{}", seen[1]);
    let again = stage.fathom(["watch", "--replay", kept.to_str().unwrap(), "--ndjson"]).succeeded().stdout;
    assert_eq!(intervals(&again).len(), seen.len());

    let (server, key) = lab.serve(&[]);
    let text = lab.fathom("a", &["watch", "--host", "198.18.0.2", "--key", &key, "--once"]).succeeded().stdout;
    assert!(text.contains("interface") && text.contains("cpu0"), "{text}");
    assert!(text.contains("connections and programs are withheld"), "{text}");
    lab.fathom("a", &["watch", "--host", "198.18.0.2", "--once"]).refused(3, &["with its key", "--key KEY"]);
    drop(server);
    stage.fathom(["watch", "--lab", lab.name, "--host", "zz", "--once"]).refused(3, &["no host \"zz\""]);
    let left: Vec<String> = stage.journals().into_iter().filter(|journal| !journal.contains("watched")).collect();
    assert_eq!(left, [""; 0], "each agent is undone");
}

/// Checks that an object has exactly these members; those in the second list may be absent.
fn check_members(of: &Value, needed: &[&str], optional: &[&str]) {
    let members = of.as_object().unwrap_or_else(|| panic!("{of} is no object"));
    let is_known = |name: &&String| needed.contains(&name.as_str()) || optional.contains(&name.as_str());
    let unknown: Vec<_> = members.keys().filter(|name| !is_known(name)).collect();
    let missing: Vec<_> = needed.iter().filter(|name| !members.contains_key(**name)).collect();
    assert!(unknown.is_empty() && missing.is_empty(), "unknown {unknown:?}, missing {missing:?} in {of}");
}

/// Checks a line against the table of docs/watch.md.
fn check_line(view: &Value) {
    let optional = ["queues", "sockets", "listeners", "losses"];
    check_members(view, &["schema", "host", "at", "interval_ns", "tables", "findings"], &optional);
    assert_eq!(view["schema"], "fathom.watch/1");
    check_members(&view["tables"], &["interfaces", "cores", "tcp", "udp"], &[]);
    for row in view["tables"].as_object().unwrap().values().flat_map(|table| table.as_object().unwrap().values()) {
        assert!(row.as_object().unwrap().values().all(Value::is_number), "{row}");
    }
    let list = |name: &str| view[name].as_array().cloned().unwrap_or_default();
    for queue in list("queues") {
        check_members(&queue, &["interface", "direction", "queue", "packets_pps"], &["share"]);
    }
    for listener in list("listeners") {
        check_members(&listener, &["address", "n_waiting", "n_length", "is_full"], &[]);
    }
    check_members(&view["sockets"], &["interval_ns", "n_connections", "busiest"], &[]);
    for socket in view["sockets"]["busiest"].as_array().unwrap() {
        let rates = ["local", "peer", "rate_rx_bps", "rate_tx_bps", "n_resent", "rx_queue_bytes", "tx_queue_bytes"];
        check_members(socket, &[&rates[..], &["inode", "uid"]].concat(), &["rtt_ns", "program"]);
    }
    for finding in list("findings") {
        serde_json::from_value::<fathom_model::Finding>(finding).unwrap();
    }
    assert!(list("losses").iter().all(Value::is_string), "{view}");
}

#[test]
fn every_line_has_the_documented_members() {
    // The busiest connections are those of the whole machine.
    let stage = TestBed::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _busy = BusyConnection::to(listener.local_addr().unwrap());
    let watch = stage.start(["watch", "--interval", "100ms", "--count", "15", "--ndjson"]);
    let seen = intervals(&watch.ends().succeeded().stdout);
    assert_eq!(seen.len(), 15);
    seen.iter().for_each(check_line);
    let busiest = |view: &Value| !view["sockets"]["busiest"].as_array().unwrap().is_empty();
    assert!(seen.iter().any(busiest), "a connection with all its members was among them");
    let one: Value = serde_json::from_str(&stage.fathom(["watch", "--json"]).succeeded().stdout).unwrap();
    check_line(&one);
}

#[test]
fn a_recording_is_reported_with_its_series_and_a_damaged_file_with_the_place() {
    let stage = TestBed::beside_others();
    let kept = stage.path("day.ndjson");
    let file = kept.to_str().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let watch = stage.start(["watch", "--interval", "100ms", "--count", "10", "--ndjson", "--record", file]);
    watch.says("{");
    let mut busy = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    busy.write_all(&[7; 10_000]).unwrap();
    watch.ends().succeeded();
    let text = stage.fathom(["report", file]).succeeded().stdout;
    for words in ["received, by interface", "busy, by core", "TCP segments", "lo "] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let page = stage.path("day.html");
    stage.fathom(["report", file, "--file", page.to_str().unwrap()]).succeeded();
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<svg").count() >= 3, "{} bytes", page.len());
    stage.fathom(["report", file, "--json"]).refused(2, &["text or html", "--replay"]);

    let sadf = stage.path("sar.json");
    let known = include_str!("../../../watch/tests/sadf.json");
    fs::write(&sadf, known).unwrap();
    let text = stage.fathom(["report", sadf.to_str().unwrap()]).succeeded().stdout;
    assert!(text.contains("host: gen-1") && text.contains("eth0"), "{text}");
    fs::write(&sadf, known.replace("\"rxpck\": 50.0", "\"rxpck\": -1")).unwrap();
    let place = "entry 2 of the statistics: rxpck is -1";
    stage.fathom(["report", sadf.to_str().unwrap()]).refused(2, &[place]);
    // What precedes the damage is shown.
    let shown = stage.fathom(["watch", "--replay", sadf.to_str().unwrap()]).code(2);
    assert!(shown.stderr.contains(place) && shown.stdout.contains("08:46:04Z"), "{} {}", shown.stdout, shown.stderr);
}
