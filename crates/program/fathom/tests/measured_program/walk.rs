//! The window sweep of RFC 6349 over a bottleneck with a known rate.

use fathom_model::{TestRun, units::approximate};

use crate::test_bed::{RunningLab, TestBed, is_disturbed, lacks_root};

/// The rate of the router's token buckets in both directions, for frames with Ethernet headers.
const RATE: f64 = 100e6;
/// The part of it for IP packets with the MTU of the links.
const OF_PACKETS: f64 = RATE * 1500.0 / 1514.0;
const BUCKET: [&str; 8] = ["root", "tbf", "rate", "100mbit", "burst", "16kb", "latency", "200ms"];
/// Much more than the round trip of the lab, so that the windows are large enough. It is passed to the sweep as the baseline.
const BASELINE: f64 = 10e-3;

fn value(test: &TestRun, metric: &str) -> f64 {
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric);
    summary.and_then(|summary| summary.value).unwrap_or_else(|| panic!("{} has no {metric}", test.name))
}

#[track_caller]
fn assert_within(value: f64, (least, most): (f64, f64), what: &str) {
    assert!((least..=most).contains(&value), "{what}: {value} is not within {least} and {most}");
}

/// Checks the results of a sweep against the token bucket.
fn check(lab: &RunningLab<'_>, stage: &TestBed, word: &str) {
    let walk = ["tcp", "--lab", lab.name, "--test", word, "--baseline-rtt", "10ms", "--congestion", "cubic", "--json"];
    let spans = ["--warmup", "300ms", "--duration", "500ms", "--rounds", "1"];
    let run = stage.fathom([&walk[..], &spans].concat()).succeeded().run();
    assert_eq!(run.tests.len(), 5, "{word}");
    if is_disturbed(&run) {
        return;
    }
    for test in &run.tests {
        let about = |what: &str| format!("{word} {} {what}", test.name);
        let bandwidth = test.options.bit_rate("bandwidth").unwrap();
        assert_within(bandwidth.get() / OF_PACKETS, (0.93, 1.02), &about("bandwidth"));
        // The round trip of the lab is far below the given baseline, so every window fills the bucket.
        assert_within(value(test, "transfer_time_ratio"), (0.8, 2.0), &about("transfer time ratio"));
        assert_within(value(test, "efficiency_ratio"), (0.99, 1.0), &about("efficiency"));
        // Data in flight queues in front of the bucket: the round trip is the time that the window takes to pass it.
        let window = test.options.size("buffer").unwrap();
        let rtt = value(test, "rtt_ns_mean") / 1e9;
        assert_within(rtt / (approximate(window.0) * 8.0 / RATE), (0.4, 2.0), &about("round trip"));
        let queued = (rtt / BASELINE - 1.0).max(0.0);
        assert_within(value(test, "buffer_delay_ratio"), (queued - 1e-3, queued + 1e-3), &about("buffer delay"));
    }
    let grows = |metric: &str| value(&run.tests[4], metric) > 1.5 * value(&run.tests[0], metric);
    assert!(grows("rtt_ns_mean") && grows("ideal_bps"), "{word}: six times the window is no longer");
}

#[test]
fn a_walk_over_a_bottleneck_says_what_follows_from_its_rate_both_ways() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    // The bucket is behind a router, because senders keep the queues of their own devices short (TCP small queues).
    let lab = stage.lab_of("router", "windows");
    for device in ["eth0", "eth1"] {
        let bucket = lab.exec("dut", &[&["tc", "qdisc", "add", "dev", device], &BUCKET[..]].concat()).ends();
        if !bucket.stderr.is_empty() {
            return fathom_testkit::skip(&format!("no token bucket: {}", bucket.stderr));
        }
    }
    check(&lab, &stage, "rfc6349");
    check(&lab, &stage, "rfc6349-down");
}
