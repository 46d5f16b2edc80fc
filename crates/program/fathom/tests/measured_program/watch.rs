//! `fathom watch` on a host whose traffic is known to the byte, live and from its recording.

use std::{fs, io::Read as _, net::UdpSocket};

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
fn a_scraper_gets_the_counters_while_they_are_watched() {
    let stage = TestBed::new();
    let watch = stage.start(["watch", "--metrics", "127.0.0.1:0", "--ndjson", "--count", "50", "--interval", "100ms"]);
    let told = watch.warns("/metrics");
    watch.says("{");
    let address = told.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let mut scraper = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut scraper, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("# TYPE fathom_dev_rx_bytes counter"), "{answer}");
    assert!(answer.contains("fathom_cpu_idle_seconds_total{instance=\"cpu0\"}"), "{answer}");
    assert!(answer.contains("# TYPE fathom_sock_tcp_in_use gauge"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}
