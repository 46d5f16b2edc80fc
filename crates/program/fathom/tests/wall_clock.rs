//! A wall clock that is set during a test: by an hour, forward and back, ten times a second.
//!
//! Nobody wants that on a machine that is used, so only the emulated machine of `make test-vm` runs this.

#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    panic::{self, AssertUnwindSafe},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use serde_json::Value;

const HOUR: u64 = 3600;
const STEP_EVERY: Duration = Duration::from_millis(100);
/// More than any time in these tests, and far less than a step.
const LONG_NS: f64 = 300e9;
const LAB: &str = "wall-clock";

/// Runs fathom and returns its document.
fn document(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_fathom")).args(words).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn set_clock(seconds: u64) {
    let date = Command::new("date").arg("-s").arg(format!("@{seconds}")).output().unwrap();
    assert!(date.status.success(), "{}", String::from_utf8_lossy(&date.stderr));
}

/// Does something while the wall clock jumps to and fro. It is an hour ahead at half of the times.
fn with_steps<T>(work: impl FnOnce() -> T) -> T {
    let seconds = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let steps = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                set_clock(seconds() + HOUR);
                thread::sleep(STEP_EVERY);
                set_clock(seconds() - HOUR);
                thread::sleep(STEP_EVERY);
            }
        });
        // A test that fails ends the steps, too.
        let outcome = panic::catch_unwind(AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        steps.join().unwrap();
        outcome.unwrap_or_else(|failure| panic::resume_unwind(failure))
    })
}

/// Returns the values of a run that are longer than any time in it, with the names of their metrics.
fn too_long(run: &Value) -> Vec<(String, f64)> {
    let summaries = run["tests"][0]["summaries"].as_array().unwrap().iter();
    let times = summaries.filter(|summary| summary["metric"]["unit"] == "nanos");
    let values = times.filter_map(|summary| Some((summary["metric"]["name"].to_string(), summary["value"].as_f64()?)));
    values.filter(|(_, value)| *value > LONG_NS).collect()
}

fn value(run: &Value, metric: &str) -> f64 {
    let summaries = run["tests"][0]["summaries"].as_array().unwrap();
    let found = summaries.iter().find(|summary| summary["metric"]["name"] == metric);
    found.and_then(|summary| summary["value"].as_f64()).unwrap_or_else(|| panic!("no {metric}"))
}

#[test]
fn a_wall_clock_that_is_set_during_a_test_changes_no_time_in_it() {
    if std::env::var_os("FATHOM_TEST_VM").is_none() {
        return fathom_testkit::skip_everywhere("sets the clock of its machine; make test-vm boots one for it");
    }
    let program = |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_fathom")).args(words).output().unwrap();
    assert!(program(&["lab", "up", "pair", "--name", LAB, "--for", "2m"]).status.success());
    let brief = ["--lab", LAB, "--duration", "2s", "--rounds", "1", "--json"];
    for (test, metric) in [
        (&["tcp", "--test", "rr"][..], "latency_ns_p50"),
        (&["http", "--rate", "100"], "latency_ns_p50"),
        (&["udp", "--rate", "400k", "--size", "500B"], "received_per_sec"),
    ] {
        let run = with_steps(|| document(&[test, &brief].concat()));
        assert_eq!(run["completeness"]["state"], "complete", "{test:?}: {}", run["findings"]);
        assert_eq!(too_long(&run), [], "{test:?}");
        assert!(value(&run, metric) > 0.0 && run["took_ns"].as_f64().unwrap() < LONG_NS, "{test:?}");
    }
    // Each of its round trips is from one stamp of the kernel to another, by the wall clock.
    let words = ["probe", "--lab", LAB, "--count", "100", "--interval", "20ms", "--json"];
    let run = with_steps(|| document(&words));
    assert_eq!(too_long(&run), []);
    assert!(value(&run, "rtt_ns_p50") > 0.0);
    assert!(program(&["lab", "down", LAB]).status.success());
}
