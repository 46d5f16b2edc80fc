//! Users spend most of their waiting time at one step.

use fathom_model::{
    Finding, Severity, Side, StepKind, StepRecord,
    units::{Nanos, approximate, percent, rounded},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, ratio_evidence, text_evidence};

/// A step with less than this share of the time does not stand out.
const MOST: f64 = 0.6;
/// With fewer steps, one always has a large share.
const STEPS_MIN: usize = 3;
/// With fewer samples, the mean of a step is not reliable.
const SAMPLES_MIN: u64 = 100;
/// A mean below this is the latency of the path, not the work of the step.
const MATTERS: Nanos = Nanos::from_millis(1);

/// Adds up the times of the steps. Transactions are skipped, because their times consist of those of their steps.
pub(crate) struct StepTime;

impl FindingRule for StepTime {
    fn id(&self) -> &'static str {
        "step-time"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(users) = &seen.test.users else { return Vec::new() };
        let names: Vec<&str> =
            users.steps.iter().filter(|step| step.kind == StepKind::Step).map(|s| &*s.name).collect();
        let spent: Vec<StepWait> = names.iter().map(|name| StepWait::at(seen, name)).collect();
        let all: f64 = spent.iter().map(|step| step.nanos).sum();
        let Some((name, step)) = names.iter().zip(&spent).max_by(|a, b| a.1.nanos.total_cmp(&b.1.nanos)) else {
            return Vec::new();
        };
        let mean = Nanos(rounded(step.nanos / approximate(step.n.max(1))));
        let share = if all > 0.0 { step.nanos / all } else { 0.0 };
        if names.len() < STEPS_MIN || share < MOST || step.n < SAMPLES_MIN || mean < MATTERS {
            return Vec::new();
        }
        let host = &seen.test.from;
        let title = format!(
            "users wait for step `{name}` {} of the time that they wait for answers, {mean} on average",
            percent(share)
        );
        vec![seen.finding(self.id(), Severity::Remark, format!("{name} is slow"), title).evidence([
            ratio_evidence(host, format!("{name} of the time of all steps"), share),
            text_evidence(host, format!("{name} mean"), mean),
        ])]
    }
}

/// The total time that users waited for a step, and the number of waits.
struct StepWait {
    nanos: f64,
    n: u64,
}

impl StepWait {
    fn at(seen: &TestEvidence<'_>, name: &str) -> Self {
        let users = seen.records(Side::Initiator).filter_map(|record| record.users.as_ref());
        let steps = users.flat_map(|users| users.steps.iter().filter(|step| step.name == name));
        let add = |sum: Self, step: &StepRecord| {
            let n = step.times.count();
            Self { nanos: sum.nanos + step.times.mean().unwrap_or(0.0) * approximate(n), n: sum.n + n }
        };
        steps.fold(Self { nanos: 0.0, n: 0 }, add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, step, visits};

    fn shop(nanos: [u64; 3]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        let steps = ["home", "login", "buy"].into_iter().zip(nanos);
        builder.users(&[visits((1_000, 0), steps.map(|(name, nanos)| step(name, (1_000, 0), nanos)).collect())]);
        builder
    }

    #[test]
    fn the_step_that_users_wait_for_most_is_named() {
        let finding = shop([1_000, 8_000, 1_000]).finding("step-time").unwrap();
        assert_eq!(
            finding.title,
            "users wait for step `login` 80 % of the time that they wait for answers, 4.00 ms on average"
        );
        assert_eq!(finding.severity, Severity::Remark);
    }

    #[test]
    fn steps_that_are_alike_or_fast_are_not_told_of() {
        assert_eq!(shop([1_000, 2_000, 1_000]).finding("step-time"), None);
        assert_eq!(shop([1, 100, 1]).finding("step-time"), None, "50 µs are the path's");
    }
}
