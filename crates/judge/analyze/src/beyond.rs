//! The cause of a limit: the findings about the trials beyond it, as if they were a test of their own.

use fathom_model::{Finding, Run, Severity, TestRun, Unit, finding::NOTHING_DONE, search::MissReason};

use crate::{analyze, context::AnalysisContext, findings::PROMISE_BROKEN};

/// Findings that say no more than that a rate is beyond the limit.
const NO_CAUSES: [&str; 3] = [NOTHING_DONE, PROMISE_BROKEN, "offered-too-little"];

/// Returns the first cause of each test that was tried beyond its limit, with the rate in its title.
pub(crate) fn causes(run: &Run, context: &AnalysisContext) -> Vec<Finding> {
    let tests: Vec<TestRun> = run.tests.iter().filter_map(beyond_limit).collect();
    if tests.is_empty() {
        return Vec::new();
    }
    // Without a command: that of a search sets the rate itself, and repeats no trial with another option.
    let mut beyond = Run { hosts: run.hosts.clone(), tests, ..Run::new(run.plan.clone()) };
    analyze(&mut beyond, context);
    let is_cause = |finding: &&Finding| {
        matches!(finding.severity, Severity::HoldsBack | Severity::Invalidates)
            && !NO_CAUSES.contains(&finding.id.as_str())
    };
    let mut causes: Vec<Finding> = Vec::new();
    for test in &run.tests {
        let of_test = |finding: &&Finding| finding.tests.contains(&test.name);
        let Some(rate) = rate(test).filter(|_| is_limit_of(test)) else { continue };
        let Some(first) = beyond.findings.iter().filter(is_cause).find(of_test) else { continue };
        if causes.iter().all(|told| told.id != first.id) {
            let title = format!("at {rate}, {}", first.title);
            // Of tests that run together, one has the result.
            let has_result = |name: &String| run.tests.iter().any(|test| test.name == *name && is_limit_of(test));
            let tests = first.tests.iter().filter(|name| has_result(name)).cloned().collect();
            causes.push(Finding { severity: Severity::HoldsBack, title, tests, ..first.clone() });
        }
    }
    causes
}

/// Returns the test with the trials beyond its limit in place of those at it. `None` if there are none, or if fathom itself was the limit.
fn beyond_limit(test: &TestRun) -> Option<TestRun> {
    let beyond = test.beyond.as_ref()?;
    if test.curve.as_ref().is_some_and(|curve| curve.cause() == Some(MissReason::Generator)) {
        return None;
    }
    Some(TestRun {
        name: test.name.clone(),
        title: test.title.clone(),
        from: test.from.clone(),
        to: test.to.clone(),
        server: test.server.clone(),
        path: test.path.clone(),
        selected_by: test.selected_by.clone(),
        options: beyond.options.clone(),
        trials: beyond.trials.clone(),
        headline: test.headline.clone(),
        ..TestRun::new(test.layer, &test.kind)
    })
}

/// Returns true if a test has a limit as its result.
fn is_limit_of(test: &TestRun) -> bool {
    test.curve.is_some() || test.benchmark.is_some()
}

/// Returns the rate beyond the limit as text.
fn rate(test: &TestRun) -> Option<String> {
    let unit = test.curve.as_ref().map_or(Unit::FramesPerSec, |curve| curve.unit);
    test.beyond.as_ref().map(|beyond| unit.show(beyond.rate))
}

#[cfg(test)]
mod tests {
    use fathom_model::{Severity, names::host, run::BeyondLimit, search::Ending};

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A search that ended, with trials beyond its limit in which the receiver's buffer overflowed.
    fn searched(cause: MissReason) -> RunBuilder {
        let mut lossy = RunBuilder::new();
        lossy.udp_stream(&[(1_000, 900)]);
        lossy.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 100);
        let lossy = lossy.run.tests.remove(0);
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 1_000)]);
        builder.search(Ending::Found, cause);
        let test = builder.run.tests.last_mut().unwrap();
        test.beyond = Some(BeyondLimit { rate: 4_100.0, options: lossy.options, trials: lossy.trials });
        builder
    }

    #[test]
    fn the_cause_of_a_limit_is_that_of_the_trials_beyond_it() {
        let finding = searched(MissReason::Objective).finding("udp-receive-buffer").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert!(
            finding.title.starts_with("at 4.10 kpps, the buffer of the receiving socket on target was full"),
            "{}",
            finding.title
        );
        assert!(searched(MissReason::Objective).finding("limit").is_some());
    }

    #[test]
    fn a_limit_of_fathom_itself_has_no_cause_beyond_it() {
        assert_eq!(searched(MissReason::Generator).finding("udp-receive-buffer"), None);
    }
}
