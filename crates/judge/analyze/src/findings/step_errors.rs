//! Steps of the script fail: one step more often than all others together, or several steps.

use std::cmp::Reverse;

use fathom_model::{
    Finding, NextStep, Severity, StepKind, StepSummary,
    units::{percent, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// If at least one visit in a hundred fails at a step, the step does not do its work.
const HOLDS_BACK: f64 = 0.01;
/// The number of causes shown as evidence. The steps list all of them.
const CAUSES_MAX: usize = 3;

/// Compares the error counts of the steps.
pub(crate) struct StepErrors;

impl FindingRule for StepErrors {
    fn id(&self) -> &'static str {
        "step-errors"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let finding = match dominant_step(seen) {
            Some(dominant) => one_step_finding(seen, &dominant),
            None => several_steps_finding(seen),
        };
        finding.into_iter().collect()
    }
}

/// Returns the finding about a step that has most of the errors.
fn one_step_finding(seen: &TestEvidence<'_>, dominant: &DominantStep<'_>) -> Option<Finding> {
    let DominantStep { step, n_failed, n_all } = *dominant;
    let share = ratio(n_failed, n_failed + step.n_passed).filter(|share| *share >= HOLDS_BACK)?;
    let failures = by_frequency(failures(step));
    let most = failures.first()?.cause;
    let of = if n_all > n_failed { format!(", {} of all errors", percent_of(n_failed, n_all)) } else { String::new() };
    let title = format!("step `{}` fails {} of the time{of}, most often with `{most}`", step.name, percent(share));
    Some(with_failures(
        seen.finding(StepErrors.id(), Severity::HoldsBack, format!("{} fails", step.name), title),
        seen,
        &failures,
    ))
}

/// Returns the finding about failing steps of which none stands out.
fn several_steps_finding(seen: &TestEvidence<'_>) -> Option<Finding> {
    let steps = || seen.test.users.iter().flat_map(|users| &users.steps).filter(|step| step.kind == StepKind::Step);
    let failures = by_frequency(steps().flat_map(failures));
    let n_failed: u64 = failures.iter().map(|failure| failure.n).sum();
    let n_passed: u64 = steps().map(|step| step.n_passed).sum();
    let share = ratio(n_failed, n_failed + n_passed).filter(|share| *share >= HOLDS_BACK)?;
    let StepFailure { step, cause, .. } = failures.first()?;
    let title = format!("steps fail {} of the time, most often `{}` with `{cause}`", percent(share), step.name);
    Some(with_failures(seen.finding(StepErrors.id(), Severity::HoldsBack, "steps fail", title), seen, &failures))
}

/// A cause at a step, with its count.
struct StepFailure<'a> {
    step: &'a StepSummary,
    cause: &'a str,
    n: u64,
}

fn failures(step: &StepSummary) -> impl Iterator<Item = StepFailure<'_>> {
    step.errors.iter().map(move |(cause, n)| StepFailure { step, cause, n: *n })
}

fn by_frequency<'a>(failures: impl Iterator<Item = StepFailure<'a>>) -> Vec<StepFailure<'a>> {
    let mut failures: Vec<_> = failures.collect();
    failures.sort_by_key(|failure| Reverse(failure.n));
    failures
}

/// Adds the most frequent causes and the way to see the answers.
fn with_failures(finding: Finding, seen: &TestEvidence<'_>, failures: &[StepFailure<'_>]) -> Finding {
    let evidence = |failure: &StepFailure<'_>| {
        counter_evidence(&seen.test.from, format!("{}: {}", failure.step.name, failure.cause), failure.n)
    };
    let next = |script| {
        NextStep::new(format!("fathom app try {script}")).expected("show one user's requests and the answers to them")
    };
    finding.evidence(failures.iter().take(CAUSES_MAX).map(evidence)).next(seen.test.options.text("file").map(next))
}

fn percent_of(n: u64, whole: u64) -> String {
    ratio(n, whole).map(percent).unwrap_or_default()
}

/// A step with more than half of all errors.
pub(super) struct DominantStep<'a> {
    pub(super) step: &'a StepSummary,
    n_failed: u64,
    /// The errors of all steps.
    n_all: u64,
}

/// Returns the step with more than half of all errors, if there is one.
pub(super) fn dominant_step<'a>(seen: &TestEvidence<'a>) -> Option<DominantStep<'a>> {
    let steps = seen.test.users.as_ref()?.steps.iter().filter(|step| step.kind == StepKind::Step);
    let failed = |step: &StepSummary| step.errors.values().sum::<u64>();
    let n_all: u64 = steps.clone().map(failed).sum();
    let step = steps.max_by_key(|step| failed(step))?;
    let n_failed = failed(step);
    (2 * n_failed > n_all).then_some(DominantStep { step, n_failed, n_all })
}

#[cfg(test)]
mod tests {
    use crate::run_builder::{RunBuilder, step, visits};

    fn shop(failed: [u64; 3]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        let steps = ["home", "login", "buy"].into_iter().zip(failed);
        builder.users(&[visits((1_000, 0), steps.map(|(name, n)| step(name, (1_000, n), 1_000)).collect())]);
        builder
    }

    #[test]
    fn a_step_with_most_of_the_errors_is_named_with_its_cause() {
        let mut builder = shop([1, 120, 2]);
        let finding = builder.finding("step-errors").unwrap();
        assert_eq!(
            finding.title,
            "step `login` fails 12 % of the time, 98 % of all errors, most often with `status 500, expected 200`"
        );
        assert_eq!((finding.short.as_str(), finding.evidence[0].value.as_str()), ("login fails", "120"));
        assert_eq!(finding.next, None, "without a file there is nothing to try");
        builder.run.tests[0].options.set("file", "shop.scenario");
        assert_eq!(builder.finding("step-errors").unwrap().next.unwrap().command, "fathom app try shop.scenario");
    }

    #[test]
    fn errors_everywhere_are_no_steps_own_and_few_do_not_matter() {
        let everywhere = shop([100, 110, 100]).finding("step-errors").unwrap();
        assert_eq!(everywhere.title, "steps fail 10 % of the time, most often `login` with `status 500, expected 200`");
        assert_eq!(shop([0, 5, 0]).finding("step-errors"), None);
        assert_eq!(shop([0, 0, 0]).finding("step-errors"), None);
    }
}
