//! Causes are proven, or refuted, by changing one option of the test (docs/prove.md).
//!
//! The faults are such that the effect of the change is far larger than what a busy machine adds to it.

use std::fs;

use fathom_model::{Finding, Intervention, ProofOutcome, Run, Severity, VerdictState};
use fathom_sys::process::signal::Signal;

use crate::{
    evaluation::is_valid,
    faults::lacks_commands,
    test_bed::{TestBed, is_disturbed, lacks_root},
};

/// Rounds and trials long enough for a few hundred datagrams.
const SHORT: &[&str] = &["--rounds", "2", "--warmup", "200ms", "--duration", "1s", "--prove"];

/// Bursts that do not fit into the buffer of their receiver, however busy the machine is.
const LOSSY: &[&str] = &["udp", "--lab", "pair", "--rate", "20M", "--traffic", "bursts:32", "--buffer", "4096"];

fn proven(stage: &TestBed, test: &str, lab: &[&str]) -> Run {
    let words: Vec<&str> = test.split(' ').chain(lab.iter().copied()).chain(SHORT.iter().copied()).collect();
    let ending = stage.fathom([&words[..], &["--json"]].concat());
    ending.succeeded_or_judged();
    is_valid(&ending.stdout);
    ending.run()
}

fn finding<'a>(run: &'a Run, id: &str) -> &'a Finding {
    run.findings.iter().find(|finding| finding.id == id).unwrap_or_else(|| panic!("no {id}: {:#?}", run.findings))
}

/// Returns the change that was tried for a cause, and checks the order of its trials.
fn tried<'a>(run: &'a Run, cause: Option<&str>) -> &'a Intervention {
    let tried = run.tests[0].interventions.iter().find(|tried| tried.cause.as_deref() == cause);
    let tried = tried.unwrap_or_else(|| panic!("{cause:?} was not tried: {:#?}", run.findings));
    let places = |trials: &[fathom_model::Trial]| trials.iter().map(|trial| trial.round % 4).collect::<Vec<_>>();
    assert_eq!(places(&tried.unchanged[..2]), [0, 3], "A B B A");
    assert_eq!(places(&tried.changed[..2]), [1, 2], "A B B A");
    tried
}

#[test]
fn a_buffer_that_is_too_small_is_proven_by_a_larger_one_and_the_kept_run_tells_it_again() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let words = [LOSSY, &["--output", "kept"]].concat();
    let ending = stage.fathom([&words[..], SHORT].concat());
    assert!(
        ending.stderr.contains("to prove causes") && ending.stderr.contains("1 test is repeated"),
        "{}",
        ending.stderr
    );
    let document = fs::read_to_string(stage.path("kept/run.json")).unwrap();
    is_valid(&document);
    let run: Run = serde_json::from_str(&document).unwrap();
    let proof = finding(&run, "udp-receive-buffer").proof.as_ref().expect("it was tried");
    assert_eq!((proof.outcome, proof.change.as_str()), (ProofOutcome::Proven, "--buffer 4MiB"), "{proof:?}");
    let buffer = tried(&run, Some("udp-receive-buffer"));
    assert_eq!(buffer.from.as_deref(), Some("4KiB"));
    assert_eq!(run.tests[0].trials.len(), 2, "the rounds stay as they are");
    let told = |text: &str| {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("proven") && flat.contains("with `--buffer 4MiB` instead of 4KiB the loss"), "{text}");
    };
    told(&ending.stdout);
    told(&stage.fathom(["report", "kept"]).stdout);
    told(&fs::read_to_string(stage.path("kept/report.html")).unwrap());
}

#[test]
fn a_window_that_is_small_but_wide_enough_for_the_path_is_not_the_cause() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let up = ["lab", "up", "pair", "--name", "narrow", "--device", "impair:rate=10Mbit", "--for", "5min"];
    let lab = stage.lab_with(&up, "narrow");
    // Each round trip carries no more than the window, but only because the path makes the round trip that long.
    stage.fathom(["lab", "fault", "add", lab.name, "receive-window", "bytes=24576"]).succeeded();
    let run = proven(&stage, "tcp --congestion cubic", &["--lab", lab.name]);
    if is_disturbed(&run) {
        return;
    }
    let path = finding(&run, "path-full");
    assert_eq!(path.severity, Severity::HoldsBack, "{path:#?}");
    let window = run.findings.iter().find(|finding| finding.id == "receive-window");
    assert!(window.is_none_or(|window| window.severity == Severity::Remark), "{window:#?}");
    stage.fathom(["lab", "fault", "remove", lab.name, "receive-window"]).succeeded();
}

#[test]
fn a_shaper_and_tiny_buffers_are_proven_by_what_relieves_them() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    // A round trip of 10 ms makes a small buffer slow, whatever else the machine does.
    let up = ["lab", "up", "pair", "--name", "proving", "--device", "impair:delay=5ms", "--for", "5min"];
    let lab = stage.lab_with(&up, "proving");
    let cases: [(&[&str], &str, &str, &str); 3] = [
        (&["shaper", "rate=20mbit", "--host", "a"], "udp --rate 40M", "local-shaper", "--rate "),
        (&["receive-window", "--host", "b"], "tcp", "receive-window", "--buffer "),
        (&["send-buffer", "--host", "a"], "tcp", "send-buffer", "--buffer "),
    ];
    for (fault, test, cause, change) in cases {
        stage.fathom([&["lab", "fault", "add", lab.name], fault].concat()).succeeded();
        let run = proven(&stage, test, &["--lab", lab.name]);
        if is_disturbed(&run) {
            return;
        }
        let proof = finding(&run, cause).proof.clone().unwrap_or_else(|| panic!("{cause}: {:#?}", run.findings));
        assert_eq!(proof.outcome, ProofOutcome::Proven, "{proof:?}");
        assert!(proof.change.starts_with(change), "{proof:?}");
        stage.fathom(["lab", "fault", "remove", lab.name, fault[0]]).succeeded();
    }
}

#[test]
fn a_policer_lets_a_lower_rate_pass() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("policed");
    stage.fathom(["lab", "fault", "add", lab.name, "policer", "rate=1000"]).succeeded();
    let run = proven(&stage, "udp --rate 20M", &["--lab", lab.name]);
    let lost = run.findings.iter().find(|finding| ["rate-limit", "loss"].contains(&finding.id.as_str())).unwrap();
    let proof = lost.proof.as_ref().unwrap_or_else(|| panic!("{:#?}", run.findings));
    // On a busy machine the losses have no pattern, so that the lower rate only shows where they come from.
    let outcome = if lost.id == "rate-limit" { ProofOutcome::Proven } else { ProofOutcome::Effect };
    assert_eq!(proof.outcome, outcome, "{proof:?}");
    stage.fathom(["lab", "fault", "remove", lab.name, "policer"]).succeeded();
}

#[test]
fn nothing_is_claimed_where_nothing_is_wrong() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let run = proven(&stage, "udp --rate 5M", &["--lab", "pair"]);
    let is_told = |finding: &Finding| finding.proof.as_ref().is_some_and(|proof| proof.outcome == ProofOutcome::Proven);
    assert!(!run.findings.iter().any(is_told), "{:#?}", run.findings);
    stage
        .fathom(["udp", "--lab", "pair", "--find-limit", "lost<1%", "--prove"])
        .refused(2, &["--prove", "--find-limit"]);
}

#[test]
fn a_signal_ends_the_trials_and_keeps_the_results_of_the_rounds() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let words = [LOSSY, &["--output", "kept"]].concat();
    let long = ["--rounds", "2", "--warmup", "200ms", "--duration", "4s", "--prove"];
    let running = stage.start([&words[..], &long].concat());
    running.warns("1 test is repeated");
    running.handle().send(Signal::Interrupt).unwrap();
    let ending = running.ends().code(130);
    let run: Run = serde_json::from_str(&fs::read_to_string(stage.path("kept/run.json")).unwrap()).unwrap();
    assert_ne!(run.verdict.state, VerdictState::Incomplete, "all rounds were made");
    assert_eq!(run.tests[0].trials.len(), 2);
    assert!(run.tests[0].trials.iter().all(|trial| trial.records.values().all(|record| record.complete)));
    let cut = &run.tests[0].interventions[0];
    assert_eq!((cut.cut.as_deref(), cut.effect.as_ref()), (Some("interrupted by ctrl-C"), None));
    let flat = ending.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("--buffer 4MiB was not tried to the end: interrupted by ctrl-C"), "{}", ending.stdout);
    assert!(stage.journals().is_empty(), "{:?}", stage.journals());
}
