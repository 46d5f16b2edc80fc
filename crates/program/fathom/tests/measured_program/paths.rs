//! Two paths under the same work: their order, their pairs, what is refused, and what is put back.

use std::fs;

use fathom_model::{
    ComparedArm, CostOutcome, Run, Side, TestRun,
    run::Completeness,
    units::{Nanos, PerSec},
};
use fathom_sys::process::signal::Signal;

use crate::test_bed::{TestBed, lacks_root, until};

/// One round of trials that are just long enough to count.
const SHORTEST: &[&str] = &["--rounds", "1", "--warmup", "0ms", "--duration", "300ms", "--json"];
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
    let stage = TestBed::beside_others();
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
fn addresses_of_one_neighbor_and_rules_on_the_way_without_the_device_give_no_number() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = ["lab", "up", "pair", "--name", "same-way", "--device", "router", "--direct-wire", "--for", "5min"];
    let lab = stage.lab_with(&up, "same-way");
    let (_server, key) = lab.serve(&["--allow", "198.18.0.1"]);
    let ip = |words: &str| lab.exec("b", &words.split(' ').collect::<Vec<_>>()).ends().succeeded();
    ip("ip address add 198.18.2.77/24 dev eth1");
    let times = ["--rounds", "2", "--warmup", "0ms", "--duration", "200ms", "--json"];
    let compare = |via: &str, further: &[&str]| {
        let words = ["path", "tcp", "--test", "rr", "--direct", "198.18.2.2", "--via", via, "--key", &key];
        lab.fathom("a", &[&words[..], &times, further].concat())
    };
    let named = ["`direct` and `via` are the same path", "198.18.2.2 and 198.18.2.77 are", "neighbor on eth1"];
    compare("198.18.2.77", &[]).refused(3, &named);
    assert_eq!(compare("198.18.2.77", &["--device-counters", "echo {}"]).run().tests.len(), 3, "it is within an end");
    assert_eq!(compare("198.18.1.1", &[]).run().comparisons[0].void, None, "behind a router nobody knows");
    let route = ["ip", "route", "add", "198.18.1.1", "via", "198.18.2.2"];
    lab.exec("a", &route).ends().succeeded();
    compare("198.18.1.1", &[]).refused(3, &["both at the neighbor 198.18.2.2 on eth1"]);

    let track = "add table ip t; add chain ip t c { type filter hook prerouting priority 0; ct state new accept; }";
    lab.exec("b", &["nft", track]).ends().succeeded();
    let words = ["path", "tcp", "--lab", lab.name, "--test", "crr"];
    stage.fathom([&words[..], &times].concat()).refused(3, &["rules work on the path `direct` too: b tracks"]);
}

#[test]
fn a_device_that_translates_addresses_is_compared_with_the_direct_way() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let times = ["--rounds", "2", "--warmup", "0ms", "--duration", "500ms", "--json"];
    let udp = ["udp", "--rate", "1kpps"];
    for (device, preset, work) in [
        ("dnat", "targets:1", &["tcp", "--test", "crr"][..]),
        ("dnat", "targets6:1", &udp),
        ("dnat", "targets:1", &["packet", "--rate", "1kpps"]),
        ("balancer:mode=dnat", "targets:1", &udp),
    ] {
        let lab = ["--lab", preset, "--device", device];
        let run = stage.fathom([&["path"], work, &lab, &times].concat()).run();
        let told = format!("{device} {work:?}: {:?}", run.comparisons);
        assert!(run.comparisons[0].void.is_none() && run.comparisons[0].arms[0].n_pairs == 2, "{told}");
        let places: Vec<&str> = run.hosts["t1"].on_paths.values().map(|place| place.address.as_str()).collect();
        assert_eq!(places[0], places[1], "the target listens at its own address: {told}");
        let device_cost = |arm: &ComparedArm| {
            let value = arm.values.iter().find(|value| value.metric == "device_cost_ns")?;
            Some(value.value > 10.0 * value.reference)
        };
        let cost = device_cost(&run.comparisons[0].arms[0]);
        let has_threads = device.starts_with("balancer");
        assert_eq!(cost, has_threads.then_some(true), "its threads work for the path through it alone: {told}");
        if let Some(sum) = &run.tests[1].conservation {
            assert_eq!((sum.n_sent > 0, sum.n_unexplained), (true, 0), "{told}: {sum:?}");
        }
    }
}

#[test]
fn the_maps_of_a_device_s_programs_are_counters_of_the_device() {
    if lacks_root() {
        return;
    }
    // Alone: no other balancer has maps of these names.
    let stage = TestBed::new();
    let words = ["path", "udp", "--rate", "1kpps", "--lab", "targets:1", "--device", "balancer:path=tc"];
    let maps = ["--device-map", "fathom_targets:0=sent_on", "--device-map", "fathom_passed"];
    let run = stage.fathom([&words[..], &maps, SHORT].concat()).run();
    for test in &run.tests {
        let grown: u64 =
            test.trials.iter().map(|trial| trial.hosts["device counters"].growth("sent_on", "").unwrap()).sum();
        let sent: u64 = test
            .trials
            .iter()
            .flat_map(|trial| trial.records.values())
            .filter_map(|record| record.totals.get("sent"))
            .sum();
        let is_through = test.path.as_deref() == Some("via");
        assert!(if is_through { grown >= sent && sent > 0 } else { grown == 0 }, "{}: {grown} of {sent}", test.name);
    }
    let refused = |map: &str, code: i32, told: &[&str]| {
        stage.fathom([&words[..], &["--device-map", map], SHORT].concat()).refused(code, told);
    };
    refused("no_such_map", 3, &["the map `no_such_map` of the device cannot be read", "bpftool map"]);
    refused("fathom_targets:x=1", 2, &["is not a map", "xdp_stats:1=dropped"]);
}

#[test]
fn queues_and_sources_are_swept_and_each_queue_has_its_share_of_packets_and_of_a_core() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let words = ["path", "udp", "--device", "balancer:queues=2", "--rate", "2kpps", "--size", "64"];
    let swept = |further: &[&str]| stage.fathom([&words[..], further, SHORTEST].concat()).succeeded().run();
    let run = swept(&["--sweep", "queues=2,4", "--flows", "32", "--source", "198.18.16.0/24"]);
    let through = |at: &str| {
        let on_way = run.tests.iter().filter(|test| test.path.as_deref() == Some("via"));
        on_way.filter(|test| test.name.contains(at)).map(|test| &test.queues).next().unwrap().clone()
    };
    for (at, n_queues) in [("queues=2", 2), ("queues=4", 4)] {
        let queues = through(at);
        let n_used = queues.iter().filter(|queue| queue.n_packets > 0).count();
        assert!(n_used == n_queues, "{n_queues} queues, of which 32 flows use all: {queues:?}");
        let shares: f64 = queues.iter().filter_map(|queue| queue.share).sum();
        assert!((shares - 1.0).abs() < 1e-9 && queues.iter().all(|queue| queue.core_share.is_some()), "{queues:?}");
    }
    assert_eq!(run.sweeps[0].curves.iter().map(|curve| curve.points.len()).collect::<Vec<_>>(), [2, 2]);
    let run = swept(&["--sweep", "sources=1,8"]);
    let n_sources = |at: &str| {
        let of = run.tests.iter().find(|test| test.name.contains(at)).unwrap();
        // One of each IP version.
        of.options.text("source").map(|sources| sources.split(',').count() / 2)
    };
    assert_eq!([n_sources("sources=1"), n_sources("sources=8")], [Some(1), Some(8)]);
}

#[test]
fn the_limit_of_each_path_is_searched_for() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let find = ["--find-limit", "lost<5%", "--find-low", "500pps", "--find-high", "4kpps", "--find-precision", "20%"];
    let words = ["path", "udp", "--device", "policer:2k,8", "--size", "100", "--duration", "300ms", "--warmup", "0ms"];
    let run = stage.fathom([&words[..], &find, &["--json"]].concat()).succeeded().run();
    let kept = |path: &str| {
        let test = run.tests.iter().find(|test| test.path.as_deref() == Some(path)).unwrap();
        test.options.rate("pps").map(PerSec::get)
    };
    assert_eq!(kept("direct"), Some(4_000.0), "the highest that was allowed");
    let via = kept("via").unwrap();
    // 8 more pass at once.
    assert!((1_500.0..2_500.0).contains(&via), "{via}");
}

#[test]
fn a_device_with_its_own_commands_is_started_set_counted_and_stopped() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = ["lab", "up", "pair", "--name", "ways", "--device", "router", "--direct-wire", "--for", "5min"];
    let lab = stage.lab_with(&up, "ways");
    let log = stage.path("log");
    let say = |word: &str| format!("echo {word} >> '{}'", log.display());
    let counters = format!("echo '{{\"lines\": '$(wc -l < '{}')', \"dropped\": 0}}'", log.display());
    let (start, stop, set) = (say("start"), say("stop"), say("set {rules}"));
    let commands = ["--device-start", &start, "--device-stop", &stop, "--set", &set, "--set-on", "dut"];
    // One flow that waits for a retransmission would look like a path that went silent, which is tried again.
    let words = ["path", "tcp", "--lab", lab.name, "--test", "rr", "--flows", "8", "--sweep", "rules=1,20,300"];
    let words = [&words[..], &commands, &["--device-counters", &counters]].concat();
    let run = stage.fathom([&words[..], SHORT].concat()).run();
    let told = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"start"), Some(&"stop")), "{told}");
    // A trial that ended in silence, as on a busy machine, is looked at again after the last round.
    let (rounds, again) = lines[1..lines.len() - 1].split_at(4 * 3);
    for round in rounds.chunks(3) {
        let mut sorted = round.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, ["set 1", "set 20", "set 300"], "every value once in every round: {told}");
    }
    assert!(again.len() <= 3 && again.iter().all(|line| rounds.contains(line)), "{told}");
    assert_eq!((run.comparisons.len(), run.sweeps.len(), run.sweeps[0].curves.len()), (3, 1, 2));
    let points: Vec<&str> = run.sweeps[0].curves[1].points.iter().map(|point| point.at.as_str()).collect();
    assert_eq!(points, ["1", "20", "300"]);
    let counted = &run.tests[0].trials[0].hosts["device counters"];
    assert_eq!(counted.growth("lines", ""), Some(0), "nothing is set during a trial");
    let wrong = [&words[..10], &["--device-counters", "echo many", "--set", &set]].concat();
    let wrong = [&wrong[..], &commands[..4], SHORT].concat();
    stage.fathom(wrong).refused(3, &["are not one JSON object", "echo many"]);
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.ends_with("start\nset 1\nstop\n") || told.ends_with("stop\n"), "it was stopped: {told}");
}

#[test]
fn what_is_no_comparison_is_refused_before_anything_is_built() {
    let stage = TestBed::beside_others();
    let cases: [(&[&str], &[&str]); 12] = [
        (&["path"], &["two paths are needed", "router, squeeze"]),
        (&["path", "--lab", "pair"], &["two paths are needed", "no device"]),
        (&["path", "tcp", "--direct", "127.0.0.1", "--via", "127.0.0.1"], &["`direct` and `via` are the same path"]),
        (
            &["path", "http", "--direct", "http://127.0.0.1/", "--via", "http://127.0.0.1:80"],
            &["`direct` and `via` are the same path", "name one address"],
        ),
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

/// A comparison of two addresses of this machine, with commands of a device.
fn loopback_plan(device: &str, set: &[&str]) -> String {
    let head = "schema = \"fathom.plan/1\"\ntitle = \"two ways\"\nrounds = 2\nseed = 1\n[hosts]\nhere = \"self\"\n";
    let path = |name: &str, at: &str| format!("[[paths]]\nname = \"{name}\"\nat = {{ here = \"{at}\" }}\n");
    let test = |comparison: &str, path: &str| {
        format!(
            "[[tests]]\nname = \"{comparison} {path}\"\nkind = \"tcp_rr\"\nfrom = \"here\"\nto = \"here\"\npath = \"{path}\"\n\
             comparison = \"{comparison}\"\nwarmup = \"0s\"\nduration = \"100ms\"\n"
        )
    };
    let comparison = |(n, set): (usize, &&str)| {
        let set = if set.is_empty() { String::new() } else { format!("set = '{set}'\n") };
        let at = format!("at = {{ parameter = \"n\", value = \"{n}\" }}\n");
        let head = format!("[[comparisons]]\nname = \"rr {n}\"\n{at}{set}");
        head + &test(&format!("rr {n}"), "direct") + &test(&format!("rr {n}"), "via")
    };
    let comparisons: String = set.iter().enumerate().map(comparison).collect();
    format!("{head}[device]\n{device}\n{}{}{comparisons}", path("direct", "127.0.0.1"), path("via", "127.0.0.2"))
}

/// A command that counts its calls in a file, and does the second thing from this call on.
fn from_call(stage: &TestBed, n: u32, first: &str, then: &str) -> String {
    let file = stage.path("calls");
    let file = file.display();
    format!("echo x >> {file}; if [ $(wc -l < {file}) -ge {n} ]; then {then}; else {first}; fi")
}

/// A plan whose commands need files of a test bed.
type MadePlan<'a> = &'a dyn Fn(&TestBed) -> String;

const COUNTED: &str = r#"echo "{\"in\": 1}""#;

#[test]
fn what_was_measured_before_a_command_of_the_device_failed_is_kept() {
    let cases: [(MadePlan<'_>, usize, &str); 4] = [
        // The counters are read before and after each trial.
        (
            &|stage| loopback_plan(&format!("counters = '{}'", from_call(stage, 6, COUNTED, "false")), &[""]),
            3,
            "prints the counters",
        ),
        (
            &|stage| loopback_plan(&format!("counters = '{}'", from_call(stage, 5, COUNTED, "echo 7")), &[""]),
            2,
            "one JSON object",
        ),
        (&|stage| loopback_plan("", &[from_call(stage, 3, "true", "false").as_str(); 2]), 4, "sets a value"),
        (&|_| loopback_plan("start = 'true'\nstop = 'false'", &[""]), 4, "stops the device failed: exit status: 1"),
    ];
    for (plan, n_trials, named) in cases {
        let stage = TestBed::beside_others();
        fs::write(stage.path("plan.toml"), plan(&stage)).unwrap();
        let run = stage.fathom(["run", "plan.toml", "--json"]).code(4).run();
        let Completeness::Incomplete { reason } = &run.completeness else { panic!("{named}: it is complete") };
        assert!(reason.contains(named), "{named}: {reason}");
        assert_eq!(run.tests.iter().map(|test| test.trials.len()).sum::<usize>(), n_trials, "{named}");
        assert!(run.tests.iter().any(|test| test.summaries.iter().any(|summary| summary.value.is_some())), "{named}");
    }
    let stage = TestBed::beside_others();
    fs::write(stage.path("plan.toml"), loopback_plan("counters = 'false'", &[""])).unwrap();
    stage
        .fathom(["run", "plan.toml", "--json"])
        .refused(3, &["prints the counters of the device failed", "exit status: 1"]);
}

#[test]
fn ctrl_c_while_counters_are_read_keeps_what_was_measured() {
    let stage = TestBed::beside_others();
    let (first, then) = (COUNTED, format!("touch {}; sleep 60", stage.path("reading").display()));
    let counters = from_call(&stage, 4, first, &then);
    fs::write(stage.path("plan.toml"), loopback_plan(&format!("counters = '{counters}'"), &[""])).unwrap();
    let started = stage.start(["run", "plan.toml", "--json"]);
    until(|| stage.path("reading").exists().then_some(()));
    started.handle().send(Signal::Interrupt).unwrap();
    let run = started.ends().code(130).run();
    assert_eq!(run.completeness, Completeness::Incomplete { reason: "interrupted by ctrl-C".to_owned() });
    let n_trials = [0, 1].map(|idx| run.tests[idx].trials.len());
    assert_eq!(n_trials, [1, 1], "the trial whose counters are lacking is kept");
    assert!(!run.tests[1].trials[0].hosts.contains_key("device counters"));
}

#[test]
fn a_path_that_ended_in_silence_is_tried_again_with_the_value_of_its_own_test() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let log = stage.path("log");
    let set = format!("echo {{n}} >> {}", log.display());
    let words = ["path", "tcp", "--device", "router", "--test", "rr", "--sweep", "n=1,2", "--set", &set, "--seed", "1"];
    let words =
        [&words[..], &["--flows", "8", "--rounds", "1", "--warmup", "0ms", "--duration", "400ms", "--plan"]].concat();
    let plan = stage.fathom(words).succeeded().stdout;
    // The path through the device goes dark in the middle of the test at the first value.
    let dark = "nft 'add table ip dark; add chain ip dark drops { type filter hook forward priority 0; policy drop; }'";
    let events = format!("at = [\"100ms on=dut {dark}\"]\nafterwards = [\"on=dut nft delete table ip dark\"]");
    let (before, test) = plan.split_once("name = \"rr n=1 via\"\n").unwrap();
    let darkened = format!("{before}name = \"rr n=1 via\"\n{events}\n{test}");
    fs::write(stage.path("plan.toml"), darkened).unwrap();
    let run = stage.fathom(["run", "plan.toml", "--json"]).run();
    let told = fs::read_to_string(&log).unwrap();
    // Beside others, the path may fall silent at the second value as well.
    assert!(told.starts_with("1\n2\n1\n"), "the order of the seed, and once more: {told} {:?}", run.completeness);
}

#[test]
fn a_served_host_that_does_not_know_an_address_of_its_controller_is_told_with_the_way_out() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = ["lab", "up", "pair", "--name", "multihomed", "--device", "router", "--direct-wire", "--for", "5min"];
    let lab = stage.lab_with(&up, "multihomed");
    let (server, key) = lab.serve(&[]);
    let compare = |key: &str| {
        let words = ["path", "udp", "--direct", "198.18.2.2", "--via", "198.18.1.1", "--key", key, "--rate", "1kpps"];
        let times = ["--rounds", "1", "--warmup", "0ms", "--duration", "200ms", "--json"];
        lab.fathom("a", &[&words[..], &times].concat())
    };
    let named = ["target expects this machine at 198.18.2.1", "on target, run: fathom serve --allow 198.18.0.1"];
    compare(&key).refused(3, &named);
    drop(server);
    let (_server, key) = lab.serve(&["--allow", "198.18.0.1"]);
    let run = compare(&key).run();
    assert!(run.tests.iter().all(|test| test.trials.len() == 1), "{:?}", run.completeness);
}

#[test]
fn what_a_served_host_drops_of_an_address_that_it_does_not_know_is_told_as_that() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = ["lab", "up", "pair", "--name", "two-links", "--device", "router", "--direct-wire", "--for", "5min"];
    let lab = stage.lab_with(&up, "two-links");
    let (_server, key) = lab.serve(&[]);
    let rack = format!(
        "[hosts.me]\nlauncher = \"self\"\n[hosts.srv]\nlauncher = \"tls\"\ncontrol = \"198.18.2.2\"\n\
         data = \"198.18.1.1\"\nkey = \"{key}\"\n"
    );
    let hosts = stage.path("rack.toml");
    fs::write(&hosts, format!("schema = \"fathom.hosts/1\"\n{rack}")).unwrap();
    let measure = |words: &[&str]| {
        let ends = ["--hosts", hosts.to_str().unwrap(), "--from", "me", "--to", "srv"];
        let times = ["--rounds", "1", "--warmup", "0ms", "--duration", "300ms", "--json"];
        lab.fathom("a", &[words, &ends, &times].concat())
    };
    let sentence = "srv expects this machine at 198.18.2.1, but test traffic comes from 198.18.0.1";
    let fix = "on srv, run: fathom serve --allow 198.18.0.1";
    measure(&["tcp"]).refused(3, &[sentence, fix]);
    let elsewhere = measure(&["tcp", "--congestion", "nosuch"]).code(3).stderr;
    assert!(elsewhere.contains("modprobe") && !elsewhere.contains("--allow"), "{elsewhere}");
    for words in [&["tcp", "--test", "crr"][..], &["http"], &["udp", "--test", "rr"], &["udp", "--rate", "1M"]] {
        let run = measure(words).run();
        let told = format!("{:?}", run.completeness);
        assert!(told.contains(sentence) && told.contains(fix), "{words:?}: {told}");
        let ids: Vec<&str> = run.findings.iter().map(|finding| finding.id.as_str()).collect();
        assert!(!ids.contains(&"udp-receive-buffer"), "{words:?}: {ids:?}");
        if words.contains(&"--rate") {
            let records: Vec<_> = run.tests[0].trials[0].records.values().collect();
            let sum = |name: &str| records.iter().filter_map(|record| record.totals.get(name)).sum::<u64>();
            assert_eq!((sum("socket_dropped"), sum("port_dropped")), (0, sum("sent")));
            assert!(ids.contains(&"port-filter"), "{ids:?}");
            let drops = &run.tests[0].conservation.as_ref().unwrap().drops;
            assert!(drops.iter().any(|drop| drop.place == "receiver's port filter" && drop.n_dropped > 0), "{drops:?}");
        }
    }
}
