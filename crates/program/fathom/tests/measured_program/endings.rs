//! However a run ends, it leaves nothing on the machine.

use fathom_model::run::Completeness;
use fathom_sys::process::{Pidfd, signal::Signal};

use crate::{
    test_bed::{RunningProgram, TestBed, lacks_root, side_by_side, until},
    traces::{Traces, agents, processes},
};

/// Starts an evaluation that would take minutes and returns it with its traces, when its second test is running.
fn under_way(stage: &TestBed) -> (RunningProgram, Traces) {
    let mut traces = Traces::none();
    // A short test comes first, then a long test of frames, which attaches an XDP program.
    let plan = stage.path("long.toml");
    std::fs::write(&plan, LONG).unwrap();
    let run = stage.start(["run", plan.to_str().unwrap(), "--ndjson"]);
    // The first test has written its event; the second is running when its program is attached.
    run.says("{");
    until(|| {
        traces.gather(stage);
        traces.are_complete(2).then_some(())
    });
    (run, traces)
}

const LONG: &str = r#"
schema = "fathom.plan/1"
title = "long"
rounds = 1
[lab]
preset = "pair"
[hosts]
a = { lab = "a" }
b = { lab = "b" }
[[tests]]
name = "short"
kind = "tcp_rr"
from = "a"
to = "b"
warmup = "0s"
duration = "100ms"
[[tests]]
name = "long"
kind = "frames"
from = "a"
to = "b"
warmup = "0s"
duration = "90s"
options = { rate = "10k" }
"#;

#[test]
fn a_signal_ends_a_run_with_what_was_measured_and_leaves_nothing() {
    if lacks_root() {
        return;
    }
    for (signal, code, said) in [(Signal::Interrupt, 130, "ctrl-C"), (Signal::Terminate, 143, "SIGTERM")] {
        let stage = TestBed::new();
        let (run, traces) = under_way(&stage);
        run.handle().send(signal).unwrap();
        let ending = run.ends().code(code);
        let document = serde_json::from_str(ending.stdout.lines().last().unwrap());
        let run: fathom_model::Run = document.unwrap();
        assert_eq!(run.completeness, Completeness::Incomplete { reason: format!("interrupted by {said}") });
        assert!(run.tests[0].summaries[0].value.is_some(), "what was measured before is kept");
        traces.are_gone(&stage);
    }
}

#[test]
fn an_agent_that_dies_makes_the_result_incomplete_and_leaves_nothing() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let (run, traces) = under_way(&stage);
    Pidfd::open(agents(&stage)[0]).unwrap().kill().unwrap();
    let ending = run.ends().code(4);
    let run: fathom_model::Run = serde_json::from_str(ending.stdout.lines().last().unwrap()).unwrap();
    assert!(matches!(run.completeness, Completeness::Incomplete { .. }), "{:?}", run.completeness);
    assert!(run.tests[0].summaries[0].value.is_some(), "what was measured before is kept");
    traces.are_gone(&stage);
}

#[test]
fn a_thread_that_cannot_be_had_is_an_error_and_leaves_nothing() {
    if lacks_root() {
        return;
    }
    // Threads of 1 GiB each under a memory limit. The progress before the failure depends on the limit.
    let has_failed = side_by_side(&[1, 2, 3, 4, 5, 6], |gibibytes| {
        let stage = TestBed::beside_others();
        let mut command = stage.command("sh");
        let limited = format!("ulimit -v {}; exec \"$@\"", gibibytes * (1 << 20) + (1 << 19));
        command.args(["-c", &limited, "sh"]).arg(stage.program()).args([
            "packet",
            "--lab",
            "pair",
            "--duration",
            "100ms",
            "--rounds",
            "1",
        ]);
        command.env("RUST_MIN_STACK", (1 << 30).to_string());
        let ending = stage.spawn(command).ends();
        until(|| processes(&stage).is_empty().then_some(()));
        assert_eq!(stage.journals(), Vec::<String>::new());
        assert!(!ending.stderr.contains("defect of fathom"), "{gibibytes} GiB: {}", ending.stderr);
        !ending.has_succeeded()
    });
    assert!(has_failed.contains(&true), "nothing of what was tried has too few threads");
}

/// A run that follows one that was killed.
const NEXT_RUN: [&str; 9] = ["tcp", "--lab", "pair", "--rounds", "1", "--warmup", "0s", "--duration", "200ms"];

#[test]
fn a_killed_run_leaves_only_a_journal_and_the_next_run_removes_it() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let (run, traces) = under_way(&stage);
    run.handle().kill().unwrap();
    drop(run);
    until(|| processes(&stage).is_empty().then_some(()));
    assert_eq!(stage.journals().len(), 1, "what was done is written down");
    let next = stage.fathom(NEXT_RUN).succeeded();
    assert!(!next.stderr.contains("--stale"), "{}", next.stderr);
    let said = stage.fathom(["lab", "down", "--stale"]).succeeded().stderr;
    assert!(said.contains("nothing was left behind"), "{said}");
    traces.are_gone(&stage);
}

#[test]
fn a_lab_whose_holder_was_killed_is_undone() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let mut traces = Traces::none();
    stage.fathom(["lab", "up", "pair", "--name", "orphan"]).succeeded();
    traces.gather(&stage);
    let holders = processes(&stage);
    assert!(stage.fathom(["lab", "list"]).succeeded().stdout.contains("orphan"));
    for holder in holders {
        Pidfd::open(holder).unwrap().kill().unwrap();
    }
    until(|| processes(&stage).is_empty().then_some(()));
    let next = stage.fathom(NEXT_RUN).succeeded();
    let told = "note: killed before it could clean up: lab-orphan; undo it with: fathom lab down --stale";
    assert!(next.stderr.contains(told), "{}", next.stderr);
    stage.fathom(["lab", "down", "--stale"]).succeeded();
    traces.are_gone(&stage);
    assert_eq!(stage.fathom(["lab", "list"]).succeeded().stdout, "");
}

#[test]
fn a_lab_that_is_taken_down_leaves_nothing() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let mut traces = Traces::none();
    stage.fathom(["lab", "up", "pair", "--name", "brief"]).succeeded();
    traces.gather(&stage);
    stage.fathom(["lab", "down", "brief"]).succeeded();
    traces.are_gone(&stage);
}

#[test]
fn a_lab_is_not_taken_down_from_one_of_its_own_hosts() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab("own");
    let program = stage.program().to_str().unwrap();
    stage.fathom(["lab", "fault", "add", "own", "receive-window"]).succeeded();
    let words = ["this shell is on host a of lab \"own\"", "fathom lab down own", "outside the lab"];
    lab.exec("a", &[program, "lab", "down", "own"]).ends().refused(3, &words);
    assert!(stage.fathom(["lab", "list"]).succeeded().stdout.starts_with("own"));
    stage.fathom(["lab", "fault", "remove", "own", "receive-window"]).succeeded();
}

#[test]
fn a_program_that_an_event_left_behind_ends_with_the_lab_of_its_run() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let pid = stage.path("pid");
    let event = format!("100ms on=a sleep 600 & echo $! > {}", pid.display());
    let run = ["tcp", "--lab", "pair", "--test", "rr", "--rounds", "1", "--duration", "1s", "--at", &event];
    let ended = stage.fathom(run);
    let pid: u32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(ended.stderr.contains(&format!("sleep (process {pid}): ended, with the lab")), "{}", ended.stderr);
    until(|| Pidfd::open(pid).is_err().then_some(()));
}

#[test]
fn a_server_ends_at_a_signal() {
    let stage = TestBed::beside_others();
    let server = stage.start(["serve", "--listen", "127.0.0.1", "--port", "0", "--http-port", "0"]);
    server.says("agents");
    server.handle().send(Signal::Interrupt).unwrap();
    server.ends().code(130);
    until(|| processes(&stage).is_empty().then_some(()));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let stage = TestBed::beside_others();
    let mut command = stage.command("sh");
    let words = "{ \"$0\" tcp 127.0.0.1 --duration 100ms --warmup 0s --rounds 1 --csv; echo \"code $?\" >&2; } | true";
    command.args(["-c", words, stage.program().to_str().unwrap()]);
    let ending = stage.spawn(command).ends().succeeded();
    assert!(ending.stderr.ends_with("code 0\n"), "{}", ending.stderr);
}
