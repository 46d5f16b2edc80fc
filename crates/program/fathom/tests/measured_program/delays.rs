//! One-way delays between hosts with one clock and with two.

use std::process::Command;

use fathom_model::{TestRun, units::Nanos};

use crate::test_bed::{RunningLab, TestBed, lacks_root};

/// Host b of the preset `pair`.
const B: &str = "198.18.0.2";
/// A queue in front of host a's link. It is full at twice its rate, and then delays by 40 ms.
const QUEUE: [&str; 12] =
    ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "10mbit", "burst", "10kb", "latency"];
const QUEUED: Nanos = Nanos::from_millis(40);
/// The offset of host b's clock, in seconds ahead.
const AHEAD: &str = "1000";

fn value(test: &TestRun, metric: &str) -> Option<f64> {
    test.summaries.iter().find(|summary| summary.metric.name == metric).unwrap().value
}

/// Returns the 99th percentile of the delay of a stream that overflows the queue, and its error.
fn delay(lab: &RunningLab<'_>, key: &str) -> (f64, f64) {
    let words = ["udp", B, "--key", key, "--rate", "20M", "--duration", "1s", "--rounds", "1", "--json"];
    let run = lab.fathom("a", &words).succeeded().run();
    let test = &run.tests[0];
    let told = |metric| value(test, metric).unwrap_or_else(|| panic!("no {metric}: {:?}", test.findings));
    (told("one_way_delay_ns_p99"), told("one_way_delay_error_ns"))
}

/// Returns true if a delay matches the full queue.
fn is_queued(delay: f64) -> bool {
    (0.5..2.0).contains(&(delay / 1e9 / QUEUED.as_secs_f64()))
}

#[test]
fn the_delay_of_a_queue_is_the_same_over_one_clock_and_over_two() {
    if lacks_root() {
        return;
    }
    let has_time_namespaces =
        Command::new("unshare").args(["--time", "--fork", "true"]).status().is_ok_and(|status| status.success());
    if !has_time_namespaces {
        return fathom_testkit::skip("needs time namespaces and unshare of util-linux");
    }
    let stage = TestBed::new();
    let lab = stage.lab("delays");
    let queue = lab.exec("a", &[&QUEUE[..], &["40ms"]].concat()).ends();
    if !queue.stderr.is_empty() {
        return fathom_testkit::skip(&format!("no token bucket: {}", queue.stderr));
    }
    let (server, key) = lab.serve(&[]);
    let (of_one_clock, error) = delay(&lab, &key);
    assert!(is_queued(of_one_clock) && error < 1.0, "{of_one_clock} ± {error}");
    drop(server);

    let shifted = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", AHEAD, "--"];
    let (_server, key) = lab.serve_under(&shifted, &[]);
    let (of_two, error) = delay(&lab, &key);
    assert!(is_queued(of_two), "{of_two} ± {error}, over one clock {of_one_clock}");
    assert!((1_000.0..10e6).contains(&error), "two clocks that were compared have an error: {error}");
}
