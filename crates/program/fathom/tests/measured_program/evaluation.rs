//! An evaluation in a separate lab, in every format.

use std::{fs, path::Path};

use fathom_model::{LimitKind, Run, finding::PromiseOutcome, run::Completeness};

use crate::test_bed::{BRIEF, TestBed, lacks_root, tree};

/// The kinds of an evaluation, top layer first.
pub(crate) const KINDS: &[&str] =
    &["app_scenario", "http_closed", "tcp_stream", "tcp_rr", "tcp_crr", "udp_stream", "frames"];

/// Checks that every kind has a value for its first metric, and that every trial has both sides.
#[track_caller]
pub(crate) fn is_whole(run: &Run) {
    assert_eq!(run.completeness, Completeness::Complete);
    for kind in KINDS {
        let test = run.tests.iter().find(|test| test.kind == *kind).unwrap_or_else(|| panic!("no test of {kind}"));
        assert_eq!(test.unavailable, None, "{kind}");
        let first = test.summaries.first().unwrap_or_else(|| panic!("{kind} has no summary"));
        assert!(first.value.is_some_and(|value| value > 0.0), "{kind}: {first:?}");
        for trial in &test.trials {
            assert_eq!((trial.records.len(), trial.hosts.len()), (2, 2), "{kind}");
        }
    }
}

/// Returns true if a run says once why it has no row of requests without sockets.
pub(crate) fn leaves_out_xdp(run: &Run) -> bool {
    let losses = run.hosts.values().flat_map(|host| &host.unavailable);
    losses.filter(|loss| loss.starts_with("requests without sockets")).count() == 1
}

/// Checks a document against the JSON Schema.
#[track_caller]
pub(crate) fn is_valid(document: &str) {
    let schema = fs::read_to_string(tree().join("crates/base/model/schema/fathom.run-1.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let document = serde_json::from_str(document).unwrap();
    let faults: Vec<_> =
        schema.iter_errors(&document).map(|fault| format!("{}: {fault}", fault.instance_path())).collect();
    assert_eq!(faults, Vec::<String>::new());
}

fn evaluate<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["evaluate", "--quick"], BRIEF, more].concat()
}

#[test]
fn an_evaluation_measures_every_layer_and_its_document_is_valid() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let ending = stage.fathom(evaluate(&["--json", "--output", "kept"])).succeeded();
    is_valid(&ending.stdout);
    let run = ending.run();
    is_whole(&run);
    let without_sockets = run.tests.iter().find(|test| test.kind == "http_xdp");
    assert_ne!(without_sockets.is_some(), leaves_out_xdp(&run), "a row, or the reason why there is none");
    let layer_below =
        without_sockets.and_then(|test| test.limits.iter().find(|limit| limit.kind == LimitKind::LayerBelow));
    assert_eq!(layer_below, None, "it is no layer above tcp");
    assert!(run.tests.iter().all(|test| test.trials.len() == 2), "two rounds");
    let kept: Run = serde_json::from_str(&fs::read_to_string(stage.path("kept/run.json")).unwrap()).unwrap();
    assert_eq!(kept, run);
    is_self_contained(&stage.path("kept/report.html"));
}

/// A script with a promise that is always broken and one that is always kept. A maximum has no interval that could leave it
/// open.
const HASTY: &str = "closed 4 for 200ms
promise look max < 1ns
promise look max < 1h

step look
  GET /
  expect 200

step fail
  GET /
  expect 404
  on failure continue
";

#[test]
fn a_script_of_ones_own_is_the_top_row_and_a_step_that_breaks_its_promise_ends_with_its_code() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    fs::write(stage.path("hasty.scenario"), HASTY).unwrap();
    let ending = stage.fathom(evaluate(&["--script", "hasty.scenario", "--json"])).broke_its_promise();
    is_valid(&ending.stdout);
    let run = ending.run();
    assert_eq!((run.tests[0].name.as_str(), run.tests[0].title.as_str()), ("app", "hasty.scenario"));
    let users = run.tests[0].users.as_ref().expect("users of a script");
    let [look, fail] = users.steps.as_slice() else { panic!("two steps: {:?}", users.steps) };
    let outcomes: Vec<PromiseOutcome> = look.promises.iter().map(|promise| promise.outcome).collect();
    assert_eq!(outcomes, [PromiseOutcome::Broken, PromiseOutcome::Kept]);
    assert!(look.n_passed > 0 && fail.n_passed == 0 && fail.examples.len() == 1, "{users:?}");
    assert!(run.findings.iter().any(|finding| finding.id == "step-errors" && finding.short == "fail fails"));
}

/// Checks that a page is whole and loads nothing.
#[track_caller]
fn is_self_contained(report: &Path) {
    let text = fs::read_to_string(report).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.trim_end().ends_with("</html>"), "{}", &text[..200]);
    for kind in KINDS {
        assert!(text.contains(kind), "{kind} is not in the report");
    }
    for outside in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!text.contains(outside), "the report loads something: {outside}");
    }
}

#[test]
fn events_come_line_by_line_and_the_document_is_the_last() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let ending = stage.fathom(evaluate(&["--ndjson"])).succeeded();
    let lines: Vec<&str> = ending.stdout.lines().collect();
    for line in &lines {
        assert!(serde_json::from_str::<serde_json::Value>(line).unwrap().is_object(), "{line}");
    }
    let (last, events) = lines.split_last().unwrap();
    is_valid(last);
    let run: Run = serde_json::from_str(last).unwrap();
    is_whole(&run);
    assert!(events.len() >= 2 * run.tests.len(), "an event per trial, not {}", events.len());
    let report = fs::read_dir(stage.path("runs")).unwrap().next().unwrap().unwrap().path().join("report.html");
    is_self_contained(&report);
}

#[test]
fn rows_have_the_columns_that_their_header_names() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let ending = stage.fathom(evaluate(&["--csv"])).succeeded();
    let mut rows = csv::Reader::from_reader(ending.stdout.as_bytes());
    assert!(rows.headers().unwrap().len() > 3);
    // By default, the reader refuses rows of different lengths.
    let rows: Vec<csv::StringRecord> = rows.records().collect::<Result<_, _>>().unwrap();
    for kind in KINDS {
        assert!(rows.iter().any(|row| row.iter().any(|field| field == *kind)), "{kind} has no row");
    }
}
