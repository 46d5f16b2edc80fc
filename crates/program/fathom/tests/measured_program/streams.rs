//! TCP streams with the options of users.

use std::net::TcpListener;

use fathom_model::{Side, TestRun};

use crate::test_bed::TestBed;

const SPANS: [&str; 6] = ["--warmup", "100ms", "--duration", "600ms", "--rounds", "2"];

fn measured(stage: &TestBed, words: &[&str]) -> TestRun {
    measured_for(stage, &SPANS, words)
}

fn measured_for(stage: &TestBed, spans: &[&str], words: &[&str]) -> TestRun {
    let words = [&["tcp", "127.0.0.1", "--json"], spans, words].concat();
    stage.fathom(words).succeeded().run().tests.into_iter().next().unwrap()
}

fn value(test: &TestRun, metric: &str) -> f64 {
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric);
    summary.unwrap_or_else(|| panic!("no {metric}")).value.unwrap_or_else(|| panic!("{metric} has no value"))
}

#[test]
fn both_ways_at_once_tells_each_way_and_their_sum() {
    let stage = TestBed::new();
    let test = measured(&stage, &["--test", "both", "--rate", "40M", "--flows", "2"]);
    let [sum, up, down] = ["", "_up", "_down"].map(|way| value(&test, &format!("throughput_bps{way}")));
    assert!((sum / (up + down) - 1.0).abs() < 1e-6, "{sum} is not {up} and {down}");
    for way in [up, down] {
        assert!((30e6..50e6).contains(&way), "{way} where 40 Mbit/s were asked for");
    }
    assert!(value(&test, "missing_ratio_up").abs() < 1e-9 && value(&test, "missing_ratio_down").abs() < 1e-9);
    assert_eq!(test.title, "stream both ways, 2 flows each");
}

#[test]
fn a_number_of_bytes_is_the_whole_of_a_round() {
    let stage = TestBed::beside_others();
    // A round ends with its bytes; the time is a bound for the machine that others use.
    let spans = ["--warmup", "100ms", "--duration", "20s", "--rounds", "2"];
    let bytes = ["--bytes", "20MB", "--send", "sendfile", "--receive", "truncate"];
    let test = measured_for(&stage, &spans, &bytes);
    for trial in &test.trials {
        for record in trial.records.values() {
            let counter = if record.side == Side::Initiator { "bytes_sent" } else { "bytes_received" };
            assert_eq!(record.totals[counter], 20_000_000);
        }
    }
    assert!(value(&test, "throughput_bps") > 0.0);
}

#[test]
fn what_a_host_does_not_have_is_answered_with_what_it_has() {
    let stage = TestBed::beside_others();
    let asked = ["tcp", "127.0.0.1", "--congestion", "nonesuch"];
    stage.fathom(asked).refused(3, &["no congestion control `nonesuch`", "fix", "cubic", "modprobe tcp_nonesuch"]);
    stage.fathom(["tcp", "127.0.0.1", "--interface", "none0"]).refused(3, &["cannot send through the interface none0"]);
    stage.fathom(["tcp", "127.0.0.1", "--source", "192.0.2.77"]).refused(3, &["cannot send from 192.0.2.77"]);
    let four = ["tcp", "127.0.0.1", "--flow-label", "7"];
    stage.fathom(four).refused(2, &["flow-label", "a target with an IPv6 address"]);
    stage.fathom(["tcp", "127.0.0.1", "--flows", "many"]).refused(2, &["a whole number from 1 to 4096, or queues"]);
    stage.fathom(["tcp", "127.0.0.1", "--send", "splice"]).refused(2, &["copy, sendfile, zerocopy"]);
}

#[test]
fn the_address_that_is_asked_for_is_the_one_that_is_measured() {
    let stage = TestBed::beside_others();
    let mut targets = vec![("127.0.0.1", "127.0.0.1"), ("127.0.0.7", "127.0.0.7"), ("localhost", "127.0.0.1")];
    if TcpListener::bind("[::1]:0").is_ok() {
        targets.extend([("::1", "::1"), ("[::1]", "::1")]);
    } else {
        fathom_testkit::skip("this machine has no IPv6");
    }
    for (target, address) in targets {
        for words in [&["tcp", target, "--test", "rr"][..], &["udp", target, "--rate", "1M"]] {
            let run = stage.fathom([words, &["--json"], &SPANS[..]].concat()).succeeded().run();
            let host = &run.hosts["this machine"];
            assert_eq!((host.address.as_deref(), host.interface.as_deref()), (Some(address), Some("lo")), "{target}");
            assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0), "{target}");
        }
    }
    if TcpListener::bind("[::1]:0").is_ok() {
        // The kernel accepts a flow label only over IPv6.
        stage.fathom([&["tcp", "::1", "--flow-label", "7"][..], &SPANS].concat()).succeeded();
        let plan = stage.fathom(["tcp", "::1", "--plan"]).succeeded().stdout;
        assert!(plan.contains(r#"at = "::1""#), "{plan}");
    }
}

#[test]
fn flows_that_one_table_of_descriptors_does_not_hold_are_sampled_all_the_same() {
    let stage = TestBed::beside_others();
    let mut command = stage.command("sh");
    // Of 300 descriptors, 128 are not available for flows, so 200 flows need a table for each of two workers.
    command.args(["-c", "ulimit -n 300; exec \"$@\"", "sh"]).arg(stage.program());
    command.args(["tcp", "127.0.0.1", "--json", "--test", "rr", "--flows", "200"]).args(SPANS);
    let run = stage.spawn(command).ends().succeeded().run();
    for record in run.tests[0].trials.iter().flat_map(|trial| trial.records.values()) {
        assert!(record.errors.is_empty(), "{:?}", record.errors);
        assert_eq!(record.flows.len(), 64, "{:?} {:?}", record.side, record.notes);
        assert!(record.flows.iter().all(|flow| !flow.samples.is_empty() && flow.id.contains("127.0.0.1:")));
    }
}
