//! The cause of a limit: the findings about the trials beyond it, as if they were a test of their own.

use fathom_model::{Finding, Run, Severity, TestRun, Unit, search::MissReason};

use crate::{
    analyze_tests,
    context::{AnalysisContext, paired_tests},
    findings::{self, NOTHING_DONE_BY},
};

/// The finding that says no more than that a rate is beyond the limit.
const NO_CAUSE: &str = "offered-too-little";

/// Returns the first cause of each test that was tried beyond its limit, with the rate in its title. A cause of several limits is told once, with
/// the rate of the first of them.
pub(crate) fn causes(run: &Run, context: &AnalysisContext) -> Vec<Finding> {
    let mut causes: Vec<Finding> = Vec::new();
    for test in &run.tests {
        let Some(cause) = cause(run, test, context) else { continue };
        match causes.iter_mut().find(|told| (&told.id, &told.short) == (&cause.id, &cause.short)) {
            Some(told) => told.tests.extend(cause.tests),
            None => causes.push(cause),
        }
    }
    causes
}

/// Returns the first cause of a test beyond its limit. `None` if fathom itself was the limit.
fn cause(run: &Run, test: &TestRun, context: &AnalysisContext) -> Option<Finding> {
    let beyond = test.beyond.as_ref().filter(|_| test.unavailable.is_none())?;
    let unit = match (&test.curve, &test.benchmark) {
        (Some(curve), _) if curve.cause() != Some(MissReason::Generator) => curve.unit,
        (None, Some(_)) => Unit::FramesPerSec,
        _ => return None,
    };
    let tests = std::iter::once(test).chain(paired_tests(run, test)).filter_map(beyond_limit).collect();
    // Without a command: that of a search sets the rate itself, and repeats no trial with another option.
    let mut one = Run { hosts: run.hosts.clone(), tests, ..Run::new(run.plan.clone()) };
    analyze_tests(&mut one, context);
    let is_cause = |finding: &Finding| {
        let is_of_nothing_done =
            finding.severity == Severity::Invalidates && NOTHING_DONE_BY.contains(&finding.id.as_str());
        (finding.severity == Severity::HoldsBack || is_of_nothing_done) && finding.id != NO_CAUSE
    };
    let first = findings::findings(&one, context, Vec::new()).into_iter().find(is_cause)?;
    let title = format!("at {}, {}", unit.show(beyond.rate), first.title);
    let tests = vec![test.name.clone()];
    Some(Finding { severity: Severity::HoldsBack, title, tests, explains: None, ..first })
}

/// Returns the test with the trials beyond its limit in place of those at it. None of them has a limit, so that this ends here.
fn beyond_limit(test: &TestRun) -> Option<TestRun> {
    let beyond = test.beyond.clone()?;
    let mut one = TestRun { trials: Vec::new(), beyond: None, ..test.clone() };
    (one.trials, one.options) = (beyond.trials, beyond.options);
    (one.benchmark, one.interventions, one.anatomy) = (None, Vec::new(), None);
    if let Some(curve) = one.curve.take() {
        // An objective about a time makes slow answers a cause.
        let parts = curve.objective.split(',').filter_map(|part| {
            let at = part.find(['<', '>', '='])?;
            Some((part[..at].trim().to_owned(), part[at..].trim().to_owned()))
        });
        one.expect = parts.collect();
    }
    Some(one)
}

#[cfg(test)]
mod tests {
    use fathom_model::{names::host, run::BeyondLimit, search::Ending};

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
    fn a_cause_of_two_limits_is_told_once_with_the_rate_of_the_first() {
        let mut builder = searched(MissReason::Objective);
        let mut other = TestRun { name: "other".to_owned(), ..builder.run.tests[0].clone() };
        other.beyond.as_mut().unwrap().rate = 9_000.0;
        builder.run.tests.push(other);
        let finding = builder.finding("udp-receive-buffer").unwrap();
        assert!(finding.title.starts_with("at 4.10 kpps, "), "{}", finding.title);
        assert_eq!((finding.tests.len(), finding.explains), (2, None));
        builder.run.tests.last_mut().unwrap().curve.as_mut().unwrap().kept = Some(8_000.0);
        let run = builder.analyzed();
        assert_eq!(run.findings.iter().filter(|finding| finding.id == "limit").count(), 2, "each has its own rate");
    }

    #[test]
    fn a_cause_at_another_rate_leaves_that_of_a_plain_test_alone() {
        let mut builder = searched(MissReason::Objective);
        builder.udp_stream(&[(1_000, 800)]);
        builder.run.tests.last_mut().unwrap().name = "plain".to_owned();
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 200);
        let run = builder.analyzed();
        let told: Vec<_> = run.findings.iter().filter(|finding| finding.id == "udp-receive-buffer").collect();
        let of_limit = |finding: &&&Finding| finding.title.starts_with("at ");
        assert_eq!((told.len(), told.iter().filter(of_limit).count()), (2, 1), "{told:?}");
    }

    #[test]
    fn a_limit_of_fathom_itself_has_no_cause_beyond_it() {
        assert_eq!(searched(MissReason::Generator).finding("udp-receive-buffer"), None);
    }
}
