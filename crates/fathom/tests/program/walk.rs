//! The walk of RFC 6349 over a bottleneck whose rate is known.

use fathom_model::{TestRun, units::BitsPerSec};

use crate::stage::{LabUp, Stage, lacks_root, skip};

/// What the token bucket in front of both links lets through, frames with their Ethernet headers.
const RATE: f64 = 100e6;
const BUCKET: [&str; 13] =
    ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100mbit", "burst", "16kb", "latency", "200ms"];
/// Far more than the lab's own round trip, so that windows have a size; the walk is told that the path is so long.
const BASELINE: f64 = 10e-3;

fn value(test: &TestRun, metric: &str) -> f64 {
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric);
    summary.and_then(|summary| summary.value).unwrap_or_else(|| panic!("{} has no {metric}", test.name))
}

#[track_caller]
fn assert_within(value: f64, (least, most): (f64, f64), what: &str) {
    assert!((least..=most).contains(&value), "{what}: {value} is not within {least} and {most}");
}

/// Checks what a walk says against what follows from the bucket.
fn check(lab: &LabUp<'_>, stage: &Stage, word: &str) {
    let walk = ["tcp", "--lab", lab.name, "--test", word, "--baseline-rtt", "10ms", "--json"];
    let spans = ["--warmup", "300ms", "--duration", "700ms", "--rounds", "1"];
    let run = stage.fathom([&walk[..], &spans].concat()).succeeded().run();
    assert_eq!(run.tests.len(), 5, "{word}");
    for test in &run.tests {
        let about = |what: &str| format!("{word} {} {what}", test.name);
        let bandwidth: BitsPerSec = test.options.text("bandwidth").unwrap().parse().unwrap();
        assert_within(bandwidth.get() / RATE, (0.9, 1.02), &about("bandwidth"));
        // The round trip of the lab is far below what was told, so every window fills the bucket.
        assert_within(value(test, "transfer_time_ratio"), (0.8, 1.4), &about("transfer time ratio"));
        assert_within(value(test, "efficiency_ratio"), (0.999, 1.0), &about("efficiency"));
        // What is under way stands in front of the bucket: the round trip is as long as the window takes to pass it.
        let takes = value(test, "window_bytes") * 8.0 / RATE;
        let expected = (takes / BASELINE - 1.0).max(0.0);
        assert_within(
            value(test, "buffer_delay_ratio"),
            (expected * 0.5, expected * 1.3 + 0.1),
            &about("buffer delay"),
        );
    }
    let ideal = |place: usize| value(&run.tests[place], "ideal_bps");
    assert!(ideal(0) < 0.5 * ideal(4), "{word}: a quarter of the window has {} of {}", ideal(0), ideal(4));
}

#[test]
fn a_walk_over_a_bottleneck_says_what_follows_from_its_rate_both_ways() {
    if lacks_root() {
        return;
    }
    let stage = Stage::new();
    let lab = stage.lab("windows");
    for host in ["a", "b"] {
        let bucket = lab.exec(host, &BUCKET).ends();
        if !bucket.stderr.is_empty() {
            return skip(&format!("no token bucket: {}", bucket.stderr));
        }
    }
    check(&lab, &stage, "rfc6349");
    check(&lab, &stage, "rfc6349-down");
}
