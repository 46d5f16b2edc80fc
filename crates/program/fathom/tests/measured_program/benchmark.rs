//! Benchmarking methods on the command line: refused options, plans, and the results of runs.

use fathom_model::{
    Plan, Side,
    benchmark::{Reference, TrafficUnit},
    names::count,
    run::Completeness,
};

use crate::test_bed::{TestBed, lacks_root};

const PACKET: &[&str] = &["packet", "--lab", "pair"];

#[test]
fn what_makes_no_benchmark_is_told_before_anything_is_touched() {
    let stage = TestBed::beside_others();
    let cases: [(&[&str], &str); 10] = [
        (&["--method", "speed"], "there is no method `speed`"),
        (&["--method", "loss,loss"], "is named twice"),
        (&["--method", "mlrsearch", "--goal", "fast"], "the goal `fast`"),
        (&["--method", "mlrsearch", "--goal", "0.5%:1s:500ms"], "makes no sense"),
        (&["--method", "loss", "--duration", "2s"], "--duration is for tests at one rate"),
        (&["--method", "loss", "--size", "64", "--sizes", "64"], "not both"),
        (&["--method", "loss", "--max-rate", "10", "--min-rate", "20"], "not above the lowest"),
        (&["--method", "loss", "--rate", "1k"], "the methods set `rate` themselves"),
        (&["--method", "recovery", "--step-at", "1s"], "the methods set `step-at` themselves"),
        (&["--method", "recovery", "--recovery-runs", "0"], "0 is not in 1..=1000"),
    ];
    for (words, expected) in cases {
        stage.fathom([PACKET, words].concat()).refused(2, &[expected]);
    }
}

#[test]
fn a_benchmark_is_planned_whole_with_a_test_for_each_size() {
    let stage = TestBed::beside_others();
    let words = ["--method", "rfc2544", "--conform", "--max-rate", "1M", "--plan"];
    let text = stage.fathom([PACKET, &words].concat()).succeeded().stdout;
    let plan: Plan = toml::from_str(&text).unwrap();
    let sizes: Vec<_> = plan.tests.iter().map(|test| test.options.text("size").unwrap()).collect();
    assert_eq!((sizes.len(), plan.rounds), (7, 1), "{sizes:?}");
    let benchmark = plan.tests[0].benchmark.as_ref().unwrap();
    assert_eq!(benchmark.methods, ["throughput", "latency", "loss", "back-to-back", "recovery"]);
    let lengths = [&benchmark.trial, &benchmark.pause, &benchmark.latency_trial].map(|text| text.clone().unwrap());
    let option = |name: &str| plan.tests[0].options.text(name);
    assert_eq!((option("learning").as_deref(), option("learning-wait").as_deref()), (Some("3"), Some("2s")));
    assert_eq!((lengths, benchmark.burst_searches), (["60s", "7s", "120s"].map(str::to_owned), Some(50)));
}

#[test]
fn frames_of_the_other_direction_are_sent_by_the_target() {
    let stage = TestBed::beside_others();
    let planned = |words: &[&str]| -> Plan {
        toml::from_str(&stage.fathom([PACKET, words, &["--plan"]].concat()).succeeded().stdout).unwrap()
    };
    for words in [&["--rate", "1k"][..], &["--method", "loss", "--max-rate", "1k"]] {
        let ends = |plan: &Plan| (plan.tests[0].from.clone(), plan.tests[0].to.clone());
        let (up, down) = (planned(words), planned(&[words, &["--direction", "down"]].concat()));
        assert_eq!(ends(&up), ("a".to_owned(), Some("b".to_owned())));
        assert_eq!(ends(&down), ("b".to_owned(), Some("a".to_owned())), "{words:?}");
    }
    for (words, names, n_benchmarks) in [
        (&["--rate", "1k"][..], ["up", "down"], 0),
        (&["--method", "loss", "--max-rate", "1k", "--sizes", "512"], ["512 B, up", "512 B, down"], 1),
    ] {
        let both = planned(&[words, &["--direction", "both"]].concat());
        assert_eq!(both.tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(), names);
        assert_eq!(both.tests.iter().filter_map(|test| test.benchmark.as_ref()).count(), n_benchmarks);
        let [up, down] = both.tests.as_slice() else { panic!("{} tests", both.tests.len()) };
        assert_eq!((up.paired_with.as_ref(), down.paired_with.as_ref()), (None, Some(&up.name)));
        assert_eq!((Some(&up.from), up.to.as_ref()), (down.to.as_ref(), Some(&down.from)));
        assert_eq!(up.options, down.options);
    }
    let search = ["--find-limit", "lost<0.1%", "--direction", "both"];
    stage.fathom([PACKET, &search].concat()).refused(2, &["not for a search", "--method throughput"]);
    let stack = ["--test", "stack-receive", "--direction", "down"];
    stage.fathom([PACKET, &stack].concat()).refused(2, &["--test stack-receive has no --direction down"]);
}

#[test]
fn a_method_judges_both_ways_at_once_together() {
    if lacks_root() {
        return;
    }
    let words = ["packet", "--device", "nft:1,1/10", "--method", "loss", "--sizes", "64", "--max-rate", "1k"];
    let short = ["--direction", "both", "--trial", "200ms", "--loss-step", "50%", "--json"];
    let run = TestBed::new().fathom([&words[..], &short].concat()).run();
    if let Completeness::Incomplete { reason } = &run.completeness {
        assert!(reason.contains("did not keep to its schedule"), "{reason}");
        return fathom_testkit::skip("others use this machine too much for frames to be sent when they are due");
    }
    let [up, down] = run.tests.as_slice() else { panic!("{} tests", run.tests.len()) };
    let found = up.benchmark.as_ref().unwrap();
    assert!(
        found.remarks.iter().any(|remark| remark.starts_with("frames went in both directions at once")),
        "{found:?}"
    );
    // The trials that are kept are those of the lowest rate, which are the last ones.
    let last = found.trials.last().unwrap();
    let total = |side: Side, name: &str| -> u64 {
        let records = [up, down].into_iter().map(|test| {
            assert_eq!(test.trials.len(), 1);
            test.trials[0].records.values().find(|record| record.side == side).unwrap()
        });
        records.map(|record| record.totals[name]).sum()
    };
    let of_both = (total(Side::Initiator, count::SENT), total(Side::Responder, count::RECEIVED));
    assert_eq!((last.n_offered, last.n_received), of_both);
    // The rule drops the first of every ten frames, in either direction.
    assert!(last.n_offered - last.n_received >= last.n_offered / 10, "{last:?}");
    assert!(down.benchmark.is_none());
}

#[test]
fn a_ramp_of_datagrams_has_the_loss_of_each_step() {
    let stage = TestBed::new();
    let udp = ["udp", "--device", "nft:1,1/10", "--sizes", "18", "--max-rate", "1k"];
    let latency = [&udp[..], &["--method", "latency"]].concat();
    stage
        .fathom(latency)
        .refused(2, &["does not have the method `latency`", "throughput, mlrsearch, loss, forwarding"]);
    let down = [&udp[..], &["--method", "loss", "--direction", "down"]].concat();
    stage.fathom(down).refused(2, &["`udp_stream_down` has no benchmarking methods"]);
    if lacks_root() {
        return;
    }
    let short = ["--method", "loss", "--trial", "200ms", "--loss-step", "50%", "--json"];
    let run = stage.fathom([&udp[..], &short].concat()).run();
    if let Completeness::Incomplete { reason } = &run.completeness {
        assert!(reason.contains("did not keep to its schedule"), "{reason}");
        return fathom_testkit::skip_everywhere(
            "others use this machine too much for datagrams to be sent when they are due",
        );
    }
    let found = run.tests[0].benchmark.as_ref().unwrap();
    assert_eq!((found.unit, found.size_bytes, found.loss.len()), (TrafficUnit::Datagrams, 18, 2));
    // The rule drops the first of every ten packets, and the packets of both trials are counted in one row.
    for trial in &found.trials {
        let lost = trial.n_offered - trial.n_received;
        assert!((trial.n_offered / 10..=trial.n_offered / 10 + 1).contains(&lost), "{trial:?}");
    }
}

#[test]
fn a_search_above_what_fathom_itself_sends_is_refused_with_both_numbers() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let words = ["--method", "throughput", "--sizes", "64", "--max-rate", "900M"];
    let said = ["900 Mpps of 64 B are more than fathom itself sends here", "flat out", "--max-rate "];
    stage.fathom([PACKET, &words].concat()).refused(3, &said);
}

#[test]
fn a_recovery_that_would_need_more_than_is_allowed_is_withheld_with_both_rates() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let words = ["--method", "recovery", "--sizes", "64", "--max-rate", "2k", "--trial", "100ms", "--json"];
    let run = stage.fathom([PACKET, &words].concat()).run();
    if let Completeness::Incomplete { reason } = &run.completeness {
        assert!(reason.contains("did not keep to its schedule"), "{reason}");
        return fathom_testkit::skip("others use this machine too much for frames to be sent when they are due");
    }
    let found = run.tests[0].benchmark.as_ref().unwrap();
    let recovery = found.results.iter().find(|result| result.metric.name == "recovery_ns").unwrap();
    let note = recovery.note.as_deref().unwrap_or_default();
    assert_eq!((recovery.value, recovery.is_irregular), (None, false));
    assert!(
        note.starts_with("withheld: the overload of 110 % is 2.20 kpps, and --max-rate allows 2.00 kpps"),
        "{note}"
    );
}

#[test]
fn a_link_that_loses_nothing_has_irregular_results_at_the_highest_rate_and_no_buffer() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let words = ["--method", "mlrsearch,loss,back-to-back,latency", "--sizes", "512", "--max-rate", "2k", "--json"];
    let short = ["--goal", "0%:100ms:300ms", "--trial", "100ms", "--latency-trial", "100ms", "--latency-runs", "1"];
    let done = stage.fathom([PACKET, &words, &short].concat());
    let run = done.run();
    if let Completeness::Incomplete { reason } = &run.completeness {
        assert!(reason.contains("did not keep to its schedule"), "{reason}");
        return fathom_testkit::skip("others use this machine too much for frames to be sent when they are due");
    }
    let [test] = run.tests.as_slice() else { panic!("{} tests", run.tests.len()) };
    let found = test.benchmark.as_ref().unwrap();
    assert_eq!((found.size_bytes, found.reference, found.line_rate), (512, Reference::Asked, None));
    assert!(found.own.unwrap().flat_out > 2000.0, "{found:?}");
    let value = |name: &str| found.results.iter().find(|result| result.metric.name == name).unwrap();
    let goal = value("goal_1_per_sec");
    assert!(goal.is_irregular && goal.value == Some(2000.0) && goal.low == Some(2000.0), "{goal:?}");
    assert_eq!((value("loss_at_max_ratio").value, found.loss.len()), (Some(0.0), 2));
    assert!(value("burst_frames").note.as_ref().unwrap().contains("no buffer ever fills"));
    assert!(value("latency_typical_ns").value.is_some_and(|ns| ns > 0.0), "{found:?}");
    assert_eq!(test.summaries[0].value, Some(2000.0));
    assert!(found.trials.iter().all(|trial| trial.n_received <= trial.n_offered));
}
