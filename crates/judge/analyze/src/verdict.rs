//! The state of a run in one word, and whether its promises were kept.

use fathom_model::{
    Layer, Run, Severity, Trial, Verdict, VerdictState,
    finding::{NOTHING_DONE, PromiseOutcome},
    run::{Completeness, TestRun},
};

use crate::{
    findings::ended_in_warm_up,
    judged_promise::{PromiseResult, judge_promises},
};

/// Returns the state of a run. Checks its results first, then findings that spoil its values, then its promises.
pub(crate) fn verdict(run: &Run) -> Verdict {
    let all = |is: &dyn Fn(&TestRun) -> bool| run.tests.iter().all(is);
    let invalid = run.tests.iter().filter(|test| has_finding(run, test, Severity::Invalidates));
    let invalid: Vec<String> = invalid.map(|test| test.name.clone()).collect();
    let said = |state, reasons| Verdict { state, reasons, invalid: invalid.clone() };
    if all(&|test| has_no_result(run, test)) {
        return said(VerdictState::Invalid, reasons_for_nothing(run));
    }
    let lacking = missing_parts(run);
    if !lacking.is_empty() {
        return said(VerdictState::Incomplete, lacking);
    }
    if all(&|test| has_no_result(run, test) || has_finding(run, test, Severity::Invalidates)) {
        return said(VerdictState::Invalid, titles(run, Severity::Invalidates));
    }
    let promises: Vec<_> = run.tests.iter().flat_map(|test| trusted_promises(run, test)).collect();
    let not_kept = promises.iter().filter(|judged| judged.outcome != PromiseOutcome::Kept);
    let mut reasons: Vec<String> = not_kept.map(|judged| judged.reason.clone()).collect();
    reasons.dedup();
    let worst = [
        (PromiseOutcome::Broken, VerdictState::Broken),
        (PromiseOutcome::Open, VerdictState::Open),
        (PromiseOutcome::Kept, VerdictState::Kept),
    ];
    let is_any = |outcome| promises.iter().any(|judged| judged.outcome == outcome);
    if let Some((_, state)) = worst.into_iter().find(|(outcome, _)| is_any(*outcome)) {
        return said(state, reasons);
    }
    let measured = run.tests.iter().filter(|test| !has_no_result(run, test));
    let (disturbed, calm): (Vec<_>, Vec<_>) = measured.partition(|test| has_finding(run, test, Severity::Disturbs));
    if disturbed.len() >= calm.len() {
        return said(VerdictState::Disturbed, titles(run, Severity::Disturbs));
    }
    said(VerdictState::Measured, Vec::new())
}

/// Returns the judged promises of a test. A promise about an untrustworthy value is left open.
///
/// A disturbed test can keep a promise but not break one.
fn trusted_promises<'a>(run: &'a Run, test: &'a TestRun) -> Vec<PromiseResult<'a>> {
    let mut all = judge_promises(test);
    let Some(finding) = run.spoiler_of(test) else { return all };
    for judged in &mut all {
        let outcome = judged.outcome.beside(Some(finding));
        if outcome != judged.outcome || finding.severity == Severity::Invalidates {
            judged.outcome = outcome;
            judged.reason = format!("{} says nothing about its promise: {}", test.full_name(), finding.title);
        }
    }
    all
}

/// Returns the titles of all findings of a severity.
fn titles(run: &Run, severity: Severity) -> Vec<String> {
    let found = run.findings.iter().filter(|finding| finding.severity == severity);
    found.map(|finding| run.finding_text(finding)).collect()
}

/// Returns true if a finding of this severity names the test.
fn has_finding(run: &Run, test: &TestRun, severity: Severity) -> bool {
    run.findings.iter().any(|finding| finding.severity == severity && finding.tests.contains(&test.name))
}

/// Returns true if a test has no value, only values of its warm-up, or did nothing.
fn has_no_result(run: &Run, test: &TestRun) -> bool {
    ended_in_warm_up(test) || did_nothing(run, test) || test.summaries.iter().all(|summary| summary.value.is_none())
}

fn did_nothing(run: &Run, test: &TestRun) -> bool {
    run.findings.iter().any(|finding| finding.id == NOTHING_DONE && finding.tests.contains(&test.name))
}

/// Returns the missing parts of a run that has some results: tests that ended early or did nothing.
fn missing_parts(run: &Run) -> Vec<String> {
    if let Completeness::Incomplete { reason } = &run.completeness {
        return vec![reason.clone()];
    }
    let is_cut = |trial: &Trial| trial.records.values().any(|record| !record.complete);
    let ended_early = |test: &TestRun| !test.trials.is_empty() && test.trials.iter().all(is_cut);
    let why = |test: &TestRun| match () {
        () if ended_early(test) => Some(format!("{} ended early", test.full_name())),
        // A host that ignores one kind of probe may answer another.
        () if did_nothing(run, test) && test.layer != Layer::Path => Some(format!("{} did nothing", test.full_name())),
        () => None,
    };
    run.tests.iter().filter_map(why).collect()
}

/// Returns the reasons why there is no result at all.
fn reasons_for_nothing(run: &Run) -> Vec<String> {
    let cut = match &run.completeness {
        Completeness::Complete => None,
        Completeness::Incomplete { reason } => Some(reason.clone()),
    };
    let reasons: Vec<String> = cut.into_iter().chain(titles(run, Severity::Invalidates)).collect();
    // The row of a test says why the test could not run.
    let none_began = run.tests.iter().all(|test| test.unavailable.is_some());
    match (reasons.is_empty(), none_began) {
        (false, _) => reasons,
        (true, true) => vec!["no test could be made".to_owned()],
        (true, false) => vec!["nothing was measured".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;
    use fathom_model::{VerdictState, units::Nanos};

    fn promise(story: &mut RunBuilder, metric: &str, text: &str) {
        story.run.tests[0].expect.insert(metric.to_owned(), text.to_owned());
    }

    #[test]
    fn a_run_without_a_promise_only_measures() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000]);
        assert_eq!(story.analyzed().verdict.state, VerdictState::Measured);
    }

    #[test]
    fn a_broken_promise_fails_with_value_and_bound() {
        let mut story = RunBuilder::new();
        story.udp_stream(&[(100_000, 99_690)]);
        promise(&mut story, "loss", "0 %");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.state, VerdictState::Broken);
        assert_eq!(verdict.reasons, ["udp_stream loss 0.31 % > 0 %"]);
    }

    #[test]
    fn a_kept_promise_passes_and_one_within_the_interval_is_open() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000, 1000]);
        promise(&mut story, "throughput_bps", ">= 7k");
        assert_eq!(story.analyzed().verdict.state, VerdictState::Kept);
        let mut story = RunBuilder::new();
        story.tcp_stream(&[900, 1000, 1100]);
        promise(&mut story, "throughput_bps", ">= 8.1k");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.state, VerdictState::Open);
        assert!(verdict.reasons[0].contains("includes 8.10 kbit/s"), "{:?}", verdict.reasons);
    }

    #[test]
    fn rounds_that_differ_too_much_leave_a_promise_open_without_figures() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[100, 5000]);
        promise(&mut story, "throughput_bps", ">= 8.1k");
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.state, VerdictState::Open);
        assert!(
            verdict.reasons[0].contains("2 rounds differ too much to judge >= 8.10 kbit/s"),
            "{:?}",
            verdict.reasons
        );
    }

    #[test]
    fn a_promise_of_a_test_that_could_not_run_is_open() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000]);
        story.run.tests[0].unavailable = Some("needs CAP_NET_RAW".to_owned());
        promise(&mut story, "throughput_bps", ">= 7k");
        assert_eq!(story.analyzed().verdict.state, VerdictState::Invalid, "nothing was measured at all");
        story.http(1000, 10);
        let verdict = story.analyzed().verdict;
        assert_eq!(verdict.state, VerdictState::Open);
        assert!(verdict.reasons[0].ends_with("needs CAP_NET_RAW"), "{:?}", verdict.reasons);
    }

    #[test]
    fn a_run_of_which_every_number_is_spoilt_is_invalid_and_one_among_others_is_not() {
        let mut story = RunBuilder::new();
        story.udp_stream(&[(500, 500)]);
        story.total("client", fathom_model::names::count::INTENDED, 1000);
        assert_eq!(story.analyzed().verdict.state, VerdictState::Invalid);
        story.tcp_stream(&[1000]);
        let run = story.analyzed();
        assert_eq!((run.verdict.state, run.verdict.invalid.len()), (VerdictState::Measured, 1));
        assert_eq!(run.state_words(), "MEASURED, 1 of 2 rows INVALID");
    }

    #[test]
    fn what_others_disturbed_is_said_to_be_and_a_promise_that_was_kept_stays_kept() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000, 1000]);
        story.steal("target", Nanos::from_millis(600));
        let verdict = story.analyzed().verdict;
        assert_eq!((verdict.state, verdict.reasons.len()), (VerdictState::Disturbed, 1));
        promise(&mut story, "throughput_bps", ">= 7k");
        assert_eq!(story.analyzed().verdict.state, VerdictState::Kept);
    }

    #[test]
    fn a_run_that_lost_something_is_incomplete_whatever_was_promised() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000, 1000]);
        promise(&mut story, "throughput_bps", ">= 9k");
        story.run.completeness = super::Completeness::Incomplete { reason: "host target was lost".to_owned() };
        let verdict = story.analyzed().verdict;
        assert_eq!(
            (verdict.state, verdict.reasons),
            (VerdictState::Incomplete, vec!["host target was lost".to_owned()])
        );
    }

    #[test]
    fn a_value_that_says_nothing_cannot_break_a_promise() {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000]);
        promise(&mut story, "throughput_bps", ">= 9k");
        assert_eq!(story.analyzed().verdict.state, VerdictState::Broken);
        story.steal("target", Nanos::from_millis(600));
        assert_eq!(story.analyzed().verdict.state, VerdictState::Open);
    }
}
