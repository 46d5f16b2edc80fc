//! One tested host and its companions: what they count together, and what the loss or the slowness of one of them does.

use std::fs;

use fathom_model::{
    Run, Side, Trial, VerdictState,
    names::{count, host as counter},
    units::{Nanos, approximate},
};
use fathom_sys::{clock, process::Pidfd};

use crate::{
    test_bed::{TestBed, is_disturbed, lacks_root, until},
    traces::agents,
};

/// Returns the sum of the counter of one side in a trial, and the growth of a counter of the tested host's interface.
fn totals_and_interface(trial: &Trial, (side, total): (Side, &str), of_interface: &str) -> (f64, f64) {
    let record = trial.records.values().find(|record| record.side == side).unwrap();
    let grown = trial.hosts["sut"].growth(of_interface, "eth0").unwrap();
    (approximate(record.totals[total]), approximate(grown))
}

fn measured(stage: &TestBed, words: &[&str]) -> Run {
    let brief = ["--duration", "1s", "--warmup", "200ms", "--rounds", "2", "--json"];
    let ending = stage.fathom([words, &brief].concat());
    ending.succeeded_or_judged();
    ending.run()
}

#[test]
fn the_totals_of_all_companions_agree_with_the_interface_of_the_tested_host() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let udp = measured(&stage, &["udp", "--lab", "star:4", "--rate", "60M"]);
    for trial in &udp.tests[0].trials {
        let (arrived, frames) = totals_and_interface(trial, (Side::Responder, count::RECEIVED), counter::DEV_RX_FRAMES);
        assert!((arrived / frames - 1.0).abs() < 0.01, "{arrived} datagrams in {frames} frames");
        assert_eq!((trial.links.len(), trial.hosts.len()), (3, 4));
    }
    let asked = udp.tests[0].limits.iter().find_map(|limit| limit.used).unwrap();
    // A sender whose processor is taken away gives up what is late.
    assert!(is_disturbed(&udp) || (asked - 1.0).abs() < 0.02, "three thirds of 60 Mbit/s are {asked} of it");
    let tcp = measured(&stage, &["tcp", "--lab", "star6:4", "--rate", "300M", "--flows", "6"]);
    for trial in &tcp.tests[0].trials {
        let (bytes, wire) =
            totals_and_interface(trial, (Side::Responder, count::BYTES_RECEIVED), counter::DEV_RX_BYTES);
        assert!(bytes < wire && bytes / wire > 0.93, "{bytes} of {wire} bytes are payload");
    }
    let sharing = tcp.tests[0].sharing.as_ref().unwrap();
    assert_eq!((sharing.by_host.len(), sharing.hosts.unwrap().n), (3, 3));
    assert!(sharing.hosts.unwrap().jain > 0.95, "{sharing:?}");
    let http = measured(&stage, &["http", "--lab", "star:4", "--connections", "6", "--size", "64KiB"]);
    for trial in &http.tests[0].trials {
        let (bytes, wire) =
            totals_and_interface(trial, (Side::Initiator, count::BYTES_RECEIVED), counter::DEV_TX_BYTES);
        assert!(bytes < wire && bytes / wire > 0.97, "{bytes} of {wire} bytes are answers");
        let of_links: u64 = trial.links.iter().map(|link| link.records[&link.from].totals[count::REQUESTS]).sum();
        assert_eq!(of_links, trial.records["companions"].totals[count::REQUESTS]);
    }
    assert_eq!(stage.journals(), Vec::<String>::new());
}

#[test]
fn one_host_loads_all_companions_and_all_pairs_run_at_once() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let outward = measured(&stage, &["udp", "--lab", "star:3", "--from", "sut", "--to", "companions", "--rate", "20M"]);
    let ways: Vec<(&str, Option<&str>)> =
        outward.tests[0].links.iter().map(|link| (link.from.as_str(), link.to.as_deref())).collect();
    assert_eq!(ways, [("sut", Some("c1")), ("sut", Some("c2"))]);
    let mesh = measured(&stage, &["udp", "--lab", "star:3", "--topology", "mesh", "--rate", "30M"]);
    let test = &mesh.tests[0];
    assert_eq!(test.links.len(), 6);
    assert!(test.links.iter().all(|link| link.values.contains_key("loss_ratio")), "{:?}", test.links);
    assert!(test.trials.iter().all(|trial| trial.start_skew_ns < Nanos::from_millis(10)), "the starts are apart");
}

/// Kills the agent of a host of a lab that is up, as soon as it runs for a while.
fn kill_agent(stage: &TestBed, namespace: &str) {
    let is_there = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|link| link.to_string_lossy() == namespace.trim())
    };
    let pid = until(|| agents(stage).into_iter().find(is_there));
    // Its test has begun by then: the lab is up, and all agents greet within a second.
    clock::sleep_until(clock::now() + Nanos::from_secs(3));
    Pidfd::open(pid).unwrap().kill().unwrap();
}

#[test]
fn a_companion_that_is_killed_is_noticed_at_once_and_the_others_are_kept() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("star:4", "many");
    let namespace = lab.exec("c2", &["readlink", "/proc/self/ns/net"]).ends().succeeded().stdout;
    for (on_loss, lasts) in [("fail", 6_000), ("continue", 20_000)] {
        let words = [
            "udp",
            "--lab",
            "many",
            "--rate",
            "30M",
            "--rounds",
            "1",
            "--duration",
            "6s",
            "--on-loss",
            on_loss,
            "--json",
        ];
        let began = clock::now();
        let run = stage.start(words);
        kill_agent(&stage, &namespace);
        let killed = clock::now();
        let ending = run.ends().code(4);
        let (took, after) = (clock::now() - began, clock::now() - killed);
        assert!(took < Nanos::from_millis(lasts), "{took}");
        if on_loss == "fail" {
            assert!(after < Nanos::from_secs(3), "noticed after {after}");
        }
        let run = ending.run();
        let reason = run.verdict.reasons.join(" ");
        assert_eq!(run.verdict.state, VerdictState::Incomplete, "{reason}");
        assert!(reason.starts_with("2 of 3 hosts: ") && reason.contains("`c2`"), "{reason}");
        let trial = &run.tests[0].trials[0];
        let kept = trial.links.iter().filter(|link| link.is_whole()).count();
        assert_eq!(kept, 2, "the other companions are kept");
        assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0), "{:?}", run.tests[0].summaries[0]);
    }
}

#[test]
fn a_slow_cable_of_a_mesh_is_named_with_its_host_and_direction() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("star:5", "cable");
    let slow = || {
        let run = measured(&stage, &["udp", "--lab", lab.name, "--topology", "mesh", "--rate", "200M"]);
        let slow = run.findings.into_iter().find(|finding| finding.id == "slow-host");
        slow.map(|finding| finding.title)
    };
    assert_eq!(slow(), None, "a clean mesh");
    // The first port of the switch is that of the tested host, which four others send 40 Mbit/s to.
    let plant = |host: &str| {
        stage.fathom(["lab", "fault", "add", lab.name, "shaper", "rate=10mbit", "--host", host]).succeeded();
    };
    plant("switch");
    let title = slow().unwrap();
    assert!(title.starts_with("everything that reaches sut is slow"), "{title}");
    plant("sut");
    let title = slow().unwrap();
    assert!(title.starts_with("everything to and from sut is slow"), "{title}");
}

#[test]
fn one_slow_companion_is_named_first() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab_of("star:4", "slow");
    stage.fathom(["lab", "fault", "add", lab.name, "shaper", "rate=20mbit", "--host", "c3"]).succeeded();
    let run = measured(&stage, &["tcp", "--lab", lab.name, "--rate", "300M"]);
    let first = run.findings.first().unwrap();
    assert!(first.title.contains("c3"), "{:#?}", run.findings);
    let slow = run.findings.iter().find(|finding| finding.id == "slow-host").unwrap();
    assert!(slow.title.starts_with("c3 is slow"), "{}", slow.title);
}
