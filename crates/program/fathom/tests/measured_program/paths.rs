//! Two paths under the same work: their order, their pairs, what is refused, and what is put back.

use std::fs;

use fathom_model::{CostOutcome, Run, Side, TestRun, units::Nanos};

use crate::test_bed::{TestBed, lacks_root};

/// Trials long enough for some hundred packets.
const SHORT: &[&str] = &["--rounds", "4", "--warmup", "30ms", "--duration", "400ms", "--json"];

fn test<'a>(run: &'a Run, name: &str) -> &'a TestRun {
    run.tests.iter().find(|test| test.name == name).unwrap_or_else(|| panic!("there is no test {name}"))
}

/// Returns the names of the tests in the order in which their trials of a round began.
fn order(run: &Run, round: u32) -> Vec<&str> {
    let start = |test: &TestRun| -> Nanos {
        let trial = test.trials.iter().find(|trial| trial.round == round).unwrap();
        trial.records.values().find(|record| record.side == Side::Initiator).unwrap().start_ns
    };
    let mut tests: Vec<&TestRun> = run.tests.iter().collect();
    tests.sort_by_key(|test| start(test));
    tests.into_iter().map(|test| test.name.as_str()).collect()
}

#[test]
fn a_policer_loses_what_it_is_set_to_on_its_path_and_nothing_on_the_other() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let words = ["path", "udp", "--device", "policer:2k,8", "--rate", "4kpps", "--size", "100"];
    let run = stage.fathom([&words[..], SHORT].concat()).run();
    let forth = ["stream direct", "stream via", "stream direct again"];
    let mut back = forth;
    back.reverse();
    assert_eq!([0, 1, 2, 3].map(|round| order(&run, round)), [&forth[..], &back, &forth, &back]);
    let dropped = |name: &str, place: &str| -> u64 {
        let sum = test(&run, name).conservation.as_ref().unwrap();
        assert_eq!(sum.n_unexplained, 0, "{name}: {sum:#?}");
        sum.drops.iter().filter(|drop| drop.place.starts_with(place)).map(|drop| drop.n_dropped).sum()
    };
    assert!(dropped("stream via", "device's XDP program") > 0);
    assert_eq!(dropped("stream direct", "device's"), 0, "the device is not on this path");
    let comparison = &run.comparisons[0];
    assert_eq!((comparison.void.as_ref(), comparison.reference.as_str()), (None, "direct"));
    let [via, null] = comparison.arms.as_slice() else { panic!("{comparison:#?}") };
    assert_eq!((via.path.as_str(), via.n_pairs, via.is_null, null.is_null), ("via", 4, false, true));
    let lost = via.values.iter().find(|value| value.metric == "loss_ratio").unwrap();
    assert!(lost.outcome == CostOutcome::Costs && lost.text.ends_with(" points"), "{lost:#?}");
    assert_eq!(stage.journals(), Vec::<String>::new());
}

#[test]
fn paths_that_are_the_same_give_no_number_and_leave_nothing() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let plan = stage.fathom(["path", "tcp", "--device", "router", "--test", "rr", "--plan"]).succeeded().stdout;
    // The direct path of this plan is the way through the router, by other words.
    let same = plan.replace("a = \"eth1\"", "a = \"198.18.0.1\"").replace("b = \"eth1\"", "b = \"198.18.1.1\"");
    assert_ne!(plan, same);
    fs::write(stage.path("same.toml"), same).unwrap();
    let refused = stage.fathom(["run", "same.toml", "--warmup", "30ms", "--duration", "1s"]);
    refused.refused(3, &["nothing is measured: both paths go through dut", "`direct`"]);
    assert_eq!(stage.journals(), Vec::<String>::new());
}

#[test]
fn a_device_with_its_own_commands_is_started_set_counted_and_stopped() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let up = ["lab", "up", "pair", "--name", "ways", "--device", "router", "--direct-wire", "--for", "5min"];
    let lab = stage.lab_with(&up, "ways");
    let log = stage.path("log");
    let say = |word: &str| format!("echo {word} >> '{}'", log.display());
    let counters = format!("echo '{{\"lines\": '$(wc -l < '{}')', \"dropped\": 0}}'", log.display());
    let (start, stop, set) = (say("start"), say("stop"), say("set {rules}"));
    let commands = ["--device-start", &start, "--device-stop", &stop, "--set", &set, "--set-on", "dut"];
    let words = ["path", "tcp", "--lab", lab.name, "--test", "rr", "--sweep", "rules=1,20,300"];
    let words = [&words[..], &commands, &["--device-counters", &counters]].concat();
    let run = stage.fathom([&words[..], SHORT].concat()).run();
    let told = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"start"), Some(&"stop")), "{told}");
    for round in lines[1..lines.len() - 1].chunks(3) {
        let mut sorted = round.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, ["set 1", "set 20", "set 300"], "every value once in every round: {told}");
    }
    assert_eq!(lines.len(), 2 + 4 * 3);
    assert_eq!((run.comparisons.len(), run.sweeps.len(), run.sweeps[0].curves.len()), (3, 1, 2));
    let points: Vec<&str> = run.sweeps[0].curves[1].points.iter().map(|point| point.at.as_str()).collect();
    assert_eq!(points, ["1", "20", "300"]);
    let counted = &run.tests[0].trials[0].hosts["device counters"];
    assert_eq!(counted.growth("lines", ""), Some(0), "nothing is set during a trial");
    let wrong = [&words[..8], &["--device-counters", "echo many", "--set", &set]].concat();
    let wrong = [&wrong[..], &commands[..4], SHORT].concat();
    stage.fathom(wrong).refused(3, &["are not one JSON object", "echo many"]);
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.ends_with("start\nset 1\nstop\n") || told.ends_with("stop\n"), "it was stopped: {told}");
}

#[test]
fn what_is_no_comparison_is_refused_before_anything_is_built() {
    let stage = TestBed::new();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["path"], &["two paths are needed", "router, bridge"]),
        (&["path", "--lab", "pair"], &["two paths are needed", "no device"]),
        (&["path", "tcp", "--direct", "127.0.0.1", "--via", "127.0.0.1"], &["`direct` and `via` are the same path"]),
        (
            &["path", "--direct", "http://127.0.0.1/", "--via", "http://127.0.0.2/"],
            &["a URL is a target of http and app"],
        ),
        (&["path", "http", "--direct", "http://127.0.0.1/", "--via", "127.0.0.2"], &["`127.0.0.2` is no URL"]),
        (
            &["path", "--device", "router", "--direct", "::1", "--via", "127.0.0.1"],
            &["either --direct and --via, or --device"],
        ),
        (
            &["path", "tcp", "--device", "router", "--sweep", "rules=1,2"],
            &["`stream` has no option `rules`", "of flows,", "--set"],
        ),
        (&["path", "--device", "router", "--sweep", "flows=1,2"], &["`http` has no option `flows`", "fathom path tcp"]),
        (
            &["path", "packet", "--device", "router", "--direction", "both"],
            &["two tests at once", "--direction up or down"],
        ),
        (&["path", "tcp", "--device", "router", "--sweep", "rules=1,2", "--set", "true"], &["--set has no {rules}"]),
        (&["path", "tcp", "--device", "router", "--set-on", "c"], &["cannot run on `c`"]),
    ];
    for (words, named) in cases {
        stage.fathom(words).refused(2, named);
    }
    assert_eq!(stage.journals(), Vec::<String>::new());
}
