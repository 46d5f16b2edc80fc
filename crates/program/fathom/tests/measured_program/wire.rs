//! Reported latency compared with the times of the same packets in a capture.

use std::{collections::HashMap, fs};

use fathom_capture::{CaptureFileError, read_frames};
use fathom_model::{Histogram, Side, names::distribution, units::Nanos};
use fathom_sys::process::{Pidfd, signal::Signal};

use crate::test_bed::{RunningLab, TestBed, lacks_root, until};

/// The maximum difference from a quantile of the capture, in nanoseconds.
const DIFFERENCE_MAX: u64 = 5_000;
/// The headers of Ethernet, IPv4 and TCP with all options, without payload.
const SNAP: &str = "114";

/// Returns the time from each request to the end of its response, from a capture on host a's interface.
fn service_times(capture: &[u8]) -> Histogram {
    let (mut asked, mut times) = (HashMap::new(), Histogram::new());
    let read = read_frames(capture, |frame| {
        let at = frame.time.expect("tcpdump stamps every frame");
        follow(frame.bytes, at.0, &mut asked, &mut times);
        Ok(())
    });
    match read {
        // The last packet may be incomplete.
        Ok(_) | Err(CaptureFileError::Damaged(_)) => times,
        Err(error) => panic!("{error}"),
    }
}

/// Follows one frame. Host a has the first address of the network and sends the requests. Requests and responses are one packet
/// each in this test.
fn follow(frame: &[u8], at: u64, asked: &mut HashMap<[u8; 2], u64>, times: &mut Histogram) {
    let packet = &frame[14..];
    let head = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let segment = &packet[head..];
    let payload = total - head - usize::from(segment[12] >> 4) * 4;
    let (is_from_a, source, destination) = (packet[15] == 1, [segment[0], segment[1]], [segment[2], segment[3]]);
    if payload == 0 {
        return;
    }
    if is_from_a {
        asked.insert(source, at);
    } else if let Some(since) = asked.remove(&destination) {
        times.record(at - since);
    }
}

/// Runs fathom in the lab while its packets are captured. Returns the recorded and the captured times.
fn measured(stage: &TestBed, lab: &RunningLab<'_>, words: &[&str]) -> (Histogram, Histogram) {
    let file = stage.path("capture");
    let file_name = file.to_str().unwrap();
    // The process that enters the host is not the one that captures.
    let named = ["sh", "-c", "echo pid $$; exec \"$@\"", "sh"];
    let tcpdump = ["tcpdump", "-Z", "root", "-i", "eth0", "-s", SNAP, "-B", "65536", "-w", file_name];
    // Packets are delivered in blocks, because a wakeup per packet would take microseconds between its timestamp and its
    // departure.
    let options = ["-U", "--time-stamp-precision=nano", "tcp"];
    let capture = stage.start([&["lab", "exec", lab.name, "a", "--"], &named[..], &tcpdump, &options].concat());
    let tcpdump: u32 = capture.says("pid ").trim_start_matches("pid ").trim().parse().unwrap();
    // tcpdump writes the file header when it is ready.
    until(|| fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(()));
    let common = ["http", "--lab", lab.name, "--test", "open", "--rate", "10k", "--connections", "64"];
    let spans = ["--warmup", "0s", "--duration", "2s", "--rounds", "1", "--json"];
    let run = stage.fathom([&common[..], &spans, words].concat()).succeeded().run();
    let mut records = run.tests[0].trials[0].records.values();
    let record = records.find(|record| record.side == Side::Initiator).unwrap();
    let reported = record.distributions[distribution::SERVICE_TIME].clone();
    // A block is delivered when it is full or old. The capture may end only after all blocks have arrived.
    let captured = until(|| {
        let captured = service_times(&fs::read(&file).unwrap());
        (captured.count() >= reported.count()).then_some(captured)
    });
    Pidfd::open(tcpdump).unwrap().send(Signal::Interrupt).unwrap();
    let said = capture.ends().stderr;
    assert!(said.contains("0 packets dropped by kernel"), "{said}");
    (reported, captured)
}

#[test]
fn latency_by_the_kernels_stamps_is_that_of_a_capture() {
    if lacks_root() {
        return;
    }
    if !std::path::Path::new("/usr/bin/tcpdump").exists() {
        return fathom_testkit::skip("needs tcpdump");
    }
    let stage = TestBed::new();
    let lab = stage.lab("captured");
    let (reported, captured) = measured(&stage, &lab, &["--timestamps", "kernel"]);
    // Enough for both quantiles, on a machine that is too busy for the rate too.
    assert!(reported.count() > 5_000, "{} were answered", reported.count());
    for q in [0.5, 0.99] {
        let (said, was) = (reported.quantile(q).unwrap(), captured.quantile(q).unwrap());
        // Two nearly equal values can be in different buckets.
        let width = was / 256;
        assert!(said.abs_diff(was) <= DIFFERENCE_MAX + width, "q {q}: {} against {}", Nanos(said), Nanos(was));
    }
}
