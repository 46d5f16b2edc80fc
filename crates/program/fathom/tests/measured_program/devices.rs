//! Devices between the hosts of a lab: their drops are found at the right place, and they are removed with their lab.

use fathom_model::{Conservation, Run, Side, names::count};

use crate::test_bed::{TestBed, lacks_root};

/// A trial long enough for some thousand frames.
const SHORT: &[&str] = &["--rounds", "1", "--warmup", "50ms", "--duration", "300ms", "--json"];

/// Returns a run for checks of its counts. They agree at any rate that a busy machine reaches.
fn measure(stage: &TestBed, words: &[&str]) -> Run {
    stage.fathom([&["packet"], words, SHORT].concat()).run()
}

/// Returns the drops at places whose names start with `place`.
fn dropped(sum: &Conservation, place: &str) -> u64 {
    sum.drops.iter().filter(|drop| drop.place.starts_with(place)).map(|drop| drop.n_dropped).sum()
}

#[test]
fn what_a_filter_drops_is_found_at_its_rule_and_nothing_is_unexplained() {
    if lacks_root() {
        return;
    }
    let run = measure(&TestBed::beside_others(), &["--device", "nft:20,1/50", "--rate", "5k"]);
    let sum = run.tests[0].conservation.as_ref().unwrap();
    assert_eq!(sum.n_unexplained, 0, "{sum:#?}");
    // The rule drops the first of every fifty frames.
    let n_met = sum.n_sent - dropped(sum, "sender") - dropped(sum, "device's receive ring");
    assert_eq!(dropped(sum, "device's filter rule"), n_met.div_ceil(50), "{sum:#?}");
    assert!(run.findings.iter().any(|finding| finding.id == "device-rule"), "{:#?}", run.findings);
    assert_eq!(run.hosts["dut"].environment.get("device", "is"), Some("nft:20,1/50"));
    assert!(run.tests[0].trials[0].hosts.contains_key("dut"));
    assert_eq!(run.tests[0].trials[0].records.len(), 2, "a device records nothing");
}

#[test]
fn frames_whose_tag_a_bridge_carries_beside_them_are_counted_by_every_counter() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    for counter in ["auto", "generic", "xsk", "socket"] {
        for tags in [&["--vlan", "5"][..], &["--vlan", "7,5"]] {
            let words = [&["--device", "bridge", "--rate", "2k", "--counter", counter], tags].concat();
            let run = measure(&stage, &words);
            let sum = run.tests[0].conservation.as_ref().unwrap();
            assert!(sum.n_received > 0 && sum.n_unexplained == 0, "{counter} {tags:?}: {sum:#?}");
        }
    }
}

#[test]
fn frames_that_go_both_ways_at_once_are_accounted_for_together() {
    if lacks_root() {
        return;
    }
    let run = measure(&TestBed::beside_others(), &["--device", "nft:20,1/50", "--rate", "5k", "--direction", "both"]);
    let ends: Vec<_> =
        run.tests.iter().map(|test| (test.name.as_str(), test.from.as_str(), test.to.as_deref())).collect();
    assert_eq!(ends, [("up", "a", Some("b")), ("down", "b", Some("a"))]);
    for test in &run.tests {
        let total = |side: Side, name: &str| {
            let record = test.trials[0].records.values().find(|record| record.side == side).unwrap();
            record.totals[name]
        };
        let (sent, received) = (total(Side::Initiator, count::SENT), total(Side::Responder, count::RECEIVED));
        assert!(0 < received && received <= sent, "{}: {received} of {sent}", test.name);
        assert_eq!(test.trials[0].hosts.keys().collect::<Vec<_>>(), ["a", "b", "dut"]);
    }
    let sum = run.tests[0].conservation.as_ref().unwrap();
    assert_eq!((sum.what.as_str(), sum.n_unexplained), ("frames both ways", 0), "{sum:#?}");
    let n_met = sum.n_sent - dropped(sum, "sender") - dropped(sum, "device's receive ring");
    assert_eq!(dropped(sum, "device's filter rule"), n_met.div_ceil(50), "{sum:#?}");
    assert_eq!(run.tests[1].conservation, None);
    let rule = run.findings.iter().find(|finding| finding.id == "device-rule").unwrap();
    assert_eq!(rule.tests, ["up", "down"]);
}

#[test]
fn a_policer_that_is_up_passes_what_it_is_set_to_and_its_drops_are_counted() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = ["lab", "up", "pair", "--name", "wall", "--device", "policer:1k,16", "--for", "1min"];
    stage.fathom(up).succeeded();
    let listed = stage.fathom(["lab", "list"]).succeeded().stdout;
    assert!(listed.contains("dut 198.18.0.254") && listed.contains("device policer:1000,16"), "{listed}");
    let run = measure(&stage, &["--lab", "wall", "--rate", "5k"]);
    let sum = run.tests[0].conservation.as_ref().unwrap();
    assert_eq!(sum.n_unexplained, 0, "{sum:#?}");
    assert!(dropped(sum, "device's XDP program") > 0 && sum.n_received >= 16, "{sum:#?}");
    assert!(run.findings.iter().any(|finding| finding.id == "device-program"), "{:#?}", run.findings);
    stage.fathom(["packet", "--lab", "wall", "--device", "router"]).refused(2, &["wall", "fathom lab up"]);
    stage.fathom(["lab", "down", "wall"]).succeeded();
    assert_eq!(stage.journals(), Vec::<String>::new());
}

#[test]
fn every_device_forwards_what_both_ends_say_to_each_other() {
    if lacks_root() {
        return;
    }
    for device in ["router", "bridge", "nft", "redirect", "policer:1M,1000"] {
        let words = [&["tcp", "--device", device, "--test", "rr"], SHORT].concat();
        let run = TestBed::beside_others().fathom(words).succeeded().run();
        let value = run.tests[0].summaries.first().and_then(|summary| summary.value);
        assert!(value.is_some_and(|value| value > 0.0), "{device}: {value:?}");
        assert_eq!(run.plan.via.as_deref(), Some("dut"));
    }
}

#[test]
fn what_is_wrong_with_a_device_is_told_before_anything_is_built() {
    let stage = TestBed::beside_others();
    stage.fathom(["packet", "--device", "wheel"]).refused(2, &["wheel", "policer[:RATE[,BURST]]"]);
    stage.fathom(["udp", "--device", "nft:0"]).refused(2, &["nft:0", "1 to 20000"]);
    stage.fathom(["tcp", "127.0.0.1", "--device", "router"]).refused(2, &["--device needs --lab"]);
    stage.fathom(["packet", "127.0.0.1", "--test", "stack-receive"]).refused(2, &["lab"]);
}

#[test]
fn a_device_that_takes_a_program_is_refused_without_root_with_those_that_take_none() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::owned_by(65_534);
    let mut command = stage.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(stage.program());
    command.args(["packet", "--device", "policer"]);
    stage.spawn(command).ends().refused(3, &["policer", "run as root", "router, bridge and nft need none"]);
}
