//! `fathom watch` on a host whose traffic is known to the byte, live and from its recording.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
};

use fathom_model::units::approximate;
use serde_json::Value;

use crate::test_bed::{TestBed, lacks_root};

/// Datagrams to a port that nobody listens on, each with the headers of UDP, IPv4 and Ethernet.
const SENT: u64 = 1_000;
const PAYLOAD_BYTES: usize = 958;
const FRAME_BYTES: u64 = 958 + 8 + 20 + 14;

fn intervals(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
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
    let stage = TestBed::new();
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
    stage.fathom(["watch", "--once", "--record", file]).refused(3, &["File exists"]);
    let mut whole = String::new();
    fs::File::open(&kept).unwrap().read_to_string(&mut whole).unwrap();
    fs::write(&kept, whole.replacen("\"at_ns\"", "\"at\"", 1)).unwrap();
    stage.fathom(["watch", "--replay", file]).refused(2, &["line 2: column "]);
}

#[test]
fn connections_that_wait_for_accept_and_those_that_move_bytes_are_shown_and_are_no_part_of_a_recording() {
    let stage = TestBed::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let _waiting = [TcpStream::connect(here).unwrap(), TcpStream::connect(here).unwrap()];
    let kept = stage.path("sockets.ndjson");
    let file = kept.to_str().unwrap();
    let watch = stage.start(["watch", "--interval", "100ms", "--count", "10", "--ndjson", "--record", file]);
    watch.says("{");
    let mut busy = TcpStream::connect(here).unwrap();
    busy.write_all(&[7; 10_000]).unwrap();
    let seen = intervals(&watch.ends().succeeded().stdout);
    let address = |value: &Value| value.as_str().is_some_and(|text| text == here.to_string());
    let waiting = |view: &Value| {
        let listeners = view["listeners"].as_array().unwrap().clone();
        listeners.into_iter().find(|listener| address(&listener["address"])).unwrap()
    };
    assert_eq!(waiting(&seen[0])["n_waiting"], 2);
    assert_eq!(waiting(&seen[9])["n_waiting"], 3);
    assert_eq!(waiting(&seen[9])["is_full"], false);
    let busiest = seen.iter().flat_map(|view| view["sockets"]["busiest"].as_array().unwrap().clone());
    let sender = busiest.into_iter().find(|socket| address(&socket["peer"])).expect("the sender is among the busiest");
    assert!(sender["rate_tx_bps"].as_f64().unwrap() > 0.0 && sender["rtt_ns"].is_u64(), "{sender}");
    let again = stage.fathom(["watch", "--replay", file, "--ndjson", "--count", "1"]).succeeded().stdout;
    assert!(!again.contains("\"sockets\":{") && !again.contains("\"listeners\""), "{again}");
}

#[test]
fn a_scraper_gets_the_counters_while_they_are_watched() {
    let stage = TestBed::new();
    let watch = stage.start(["watch", "--metrics", "127.0.0.1:0", "--ndjson", "--count", "50", "--interval", "100ms"]);
    let told = watch.warns("/metrics");
    watch.says("{");
    let address = told.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut scraper = TcpStream::connect(address).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("# TYPE fathom_dev_rx_bytes counter"), "{answer}");
    assert!(answer.contains("fathom_cpu_idle_seconds_total{instance=\"cpu0\"}"), "{answer}");
    assert!(answer.contains("# TYPE fathom_sock_tcp_in_use gauge"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}
