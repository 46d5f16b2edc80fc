//! The faults that the kernel's netem plants, and the findings that name them.
//!
//! Most kernels lack netem. `make test-vm` boots a kernel with it in an emulated machine, and runs this there: rates mean nothing then, but
//! shares, counts and causes do.

#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

/// One lab at a time: an emulated processor has no time for two.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// A lab with netem on what leaves its first host; taken down when dropped.
struct NetemLab {
    name: String,
    _alone: MutexGuard<'static, ()>,
}

impl NetemLab {
    fn up(values: &[&str]) -> Self {
        let alone = PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = Self { name: format!("netem-{}", values.join("-").replace('=', "")), _alone: alone };
        fathom(&["lab", "up", "pair", "--name", &lab.name, "--for", "2m"]);
        fathom(&[&["lab", "fault", "add", &lab.name, "netem", "--host", "a"], values].concat());
        lab
    }

    /// Runs a test in it, and returns the document.
    fn measured(&self, test: &str) -> Value {
        let words: Vec<&str> = test.split(' ').collect();
        let text =
            fathom(&[&words[..], &["--lab", &self.name, "--duration", "3s", "--rounds", "1", "--json"]].concat());
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for NetemLab {
    fn drop(&mut self) {
        let _ = Command::new(env!("CARGO_BIN_EXE_fathom")).args(["lab", "down", &self.name]).output();
    }
}

/// Runs fathom and returns its standard output.
fn fathom(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fathom")).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!said.is_empty() || output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    said
}

/// Whether there is a netem to test. On a machine that must have one, its absence is a failure.
fn is_there() -> bool {
    let is_there = Path::new("/sys/module/sch_netem").exists();
    if !is_there {
        assert!(std::env::var_os("FATHOM_TEST_VM").is_none(), "this machine was booted to have netem");
        fathom_testkit::skip_everywhere("this kernel has no netem loaded; make test-vm boots one that has");
    }
    is_there
}

/// Returns the ids of what holds a test back, the most important first. That the emulated machine is a slow and busy one is left out.
fn causes(run: &Value) -> Vec<&str> {
    let all = run["findings"].as_array().unwrap().iter();
    // A sender that did not get its core in time offers less than was asked.
    let is_of_machine = |finding: &&Value| finding["id"] == "offered-too-little";
    let all = all.filter(|finding| !is_of_machine(finding));
    all.filter(|finding| finding["severity"] == "holds-back").map(|finding| finding["id"].as_str().unwrap()).collect()
}

/// Returns the value of a metric.
fn value(run: &Value, metric: &str) -> f64 {
    let all = run["tests"][0]["summaries"].as_array().unwrap();
    let summary = all.iter().find(|summary| summary["metric"]["name"] == metric);
    summary.unwrap_or_else(|| panic!("no {metric} in {all:#?}"))["value"].as_f64().unwrap()
}

/// Datagrams that are mostly payload, so few that an emulated machine on a busy host keeps the rate: a hundred in a second.
const DATAGRAMS: &str = "udp --rate 400k --size 500B";

#[test]
fn each_harm_that_netem_does_to_datagrams_is_found_first_with_its_share() {
    if !is_there() {
        return;
    }
    let cases: [(&[&str], &str, &str); 4] = [
        (&["loss=10"], "qdisc-drops", "loss_ratio"),
        (&["loss=0", "duplicate=10"], "duplicates", "duplicate_ratio"),
        (&["loss=0", "delay=10ms", "reorder=10"], "reordering", "reordered_ratio"),
        (&["loss=0", "corrupt=10"], "bad-checksums", "loss_ratio"),
    ];
    for (values, expected, metric) in cases {
        let run = NetemLab::up(values).measured(DATAGRAMS);
        assert_eq!(causes(&run).first(), Some(&expected), "{values:?}: {:#?}", run["findings"]);
        // Of 300 datagrams, ten in a hundred are 30 with a standard deviation of 5.
        let share = value(&run, metric);
        assert!((0.03..0.17).contains(&share), "{values:?}: {metric} {share}");
    }
}

#[test]
fn a_delay_of_netem_is_in_each_round_trip_and_is_all_that_holds_back() {
    if !is_there() {
        return;
    }
    let run = NetemLab::up(&["loss=0", "delay=30ms"]).measured("tcp --test rr");
    assert_eq!(causes(&run), ["round-trip"], "{:#?}", run["findings"]);
    let median_ms = value(&run, "latency_ns_p50") / 1e6;
    assert!(median_ms >= 30.0, "{median_ms} ms");
}

#[test]
fn segments_that_netem_drops_are_sent_again_and_its_queue_is_named() {
    if !is_there() {
        return;
    }
    let run = NetemLab::up(&["loss=3"]).measured("tcp");
    assert_eq!(causes(&run).first(), Some(&"qdisc-drops"), "{:#?}", run["findings"]);
}
