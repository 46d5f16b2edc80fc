//! Steps of the script fail: one step more often than all others together, or several steps.

use std::cmp::Reverse;

use fathom_model::{
    Evidence, Finding, NextStep, Severity, StepKind, StepSummary,
    units::{grouped, percent, ratio},
};

use super::FindingRule;
use crate::evidence::TestEvidence;

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
            Some((step, n_failed, n_all)) => one_step_finding(seen, step, (n_failed, n_all)),
            None => several_steps_finding(seen),
        };
        finding.into_iter().collect()
    }
}

/// Returns the finding about a step that has most of the errors.
fn one_step_finding(seen: &TestEvidence<'_>, step: &StepSummary, (n_failed, n_all): (u64, u64)) -> Option<Finding> {
    let share = ratio(n_failed, n_failed + step.n_passed).filter(|share| *share >= HOLDS_BACK)?;
    let causes = by_frequency(step.errors.iter().map(|(cause, n)| (step, cause, *n)));
    let (_, most, _) = causes.first()?;
    let of = if n_all > n_failed { format!(", {} of all errors", percent_of(n_failed, n_all)) } else { String::new() };
    let title = format!("step `{}` fails {} of the time{of}, most often with `{most}`", step.name, percent(share));
    Some(finding(seen, (format!("{} fails", step.name), title), &causes))
}

/// Returns the finding about failing steps of which none stands out.
fn several_steps_finding(seen: &TestEvidence<'_>) -> Option<Finding> {
    let steps = || seen.test.users.iter().flat_map(|users| &users.steps).filter(|step| step.kind == StepKind::Step);
    let all = steps().flat_map(|step| step.errors.iter().map(move |(cause, n)| (step, cause, *n)));
    let causes = by_frequency(all);
    let n_failed: u64 = causes.iter().map(|(.., n)| n).sum();
    let n_passed: u64 = steps().map(|step| step.n_passed).sum();
    let share = ratio(n_failed, n_failed + n_passed).filter(|share| *share >= HOLDS_BACK)?;
    let (step, most, _) = causes.first()?;
    let title = format!("steps fail {} of the time, most often `{}` with `{most}`", percent(share), step.name);
    Some(finding(seen, ("steps fail".to_owned(), title), &causes))
}

/// A cause at a step, with its count.
type StepFailure<'a> = (&'a StepSummary, &'a String, u64);

fn by_frequency<'a>(causes: impl Iterator<Item = StepFailure<'a>>) -> Vec<StepFailure<'a>> {
    let mut causes: Vec<_> = causes.collect();
    causes.sort_by_key(|(.., n)| Reverse(*n));
    causes
}

fn finding(seen: &TestEvidence<'_>, (short, title): (String, String), causes: &[StepFailure<'_>]) -> Finding {
    Finding {
        id: StepErrors.id().to_owned(),
        short,
        title,
        severity: Severity::HoldsBack,
        tests: vec![seen.test.name.clone()],
        evidence: causes.iter().take(CAUSES_MAX).map(|(step, cause, n)| evidence(seen, step, cause, *n)).collect(),
        explains: None,
        proof: None,
        next: seen.test.options.text("file").map(|script| NextStep {
            command: format!("fathom app try {script}"),
            on: None,
            expected: Some("show one user's requests and the answers to them".to_owned()),
        }),
    }
}

fn percent_of(n: u64, whole: u64) -> String {
    ratio(n, whole).map(percent).unwrap_or_default()
}

fn evidence(seen: &TestEvidence<'_>, step: &StepSummary, cause: &String, n: u64) -> Evidence {
    Evidence { host: seen.test.from.clone(), counter: format!("{}: {cause}", step.name), value: grouped(n) }
}

/// Returns the step with more than half of all errors, if there is one, with its error count and the total.
pub(super) fn dominant_step<'a>(seen: &TestEvidence<'a>) -> Option<(&'a StepSummary, u64, u64)> {
    let steps = seen.test.users.as_ref()?.steps.iter().filter(|step| step.kind == StepKind::Step);
    let failed = |step: &StepSummary| step.errors.values().sum::<u64>();
    let n_all: u64 = steps.clone().map(failed).sum();
    let worst = steps.max_by_key(|step| failed(step))?;
    let n_failed = failed(worst);
    (2 * n_failed > n_all).then_some((worst, n_failed, n_all))
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
