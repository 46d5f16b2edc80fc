//! Checks whether the confidence intervals are as narrow as requested.

use std::collections::BTreeMap;

use fathom_model::{Metric, Run, Summary, TestRun, run::Host, units::share_of_percent};

use crate::summaries::summaries;

/// Returns the distance from the value to the farther end of its interval, as a share of the value.
pub(crate) fn half_width(summary: &Summary) -> Option<f64> {
    let (value, interval) = summary.value.zip(summary.confidence)?;
    let farther = (interval.high - value).max(value - interval.low);
    (value > 0.0).then_some(farther / value)
}

/// Returns true if the first value of every test is as precise as the plan requests. False if the plan requests nothing.
#[must_use]
pub fn is_narrow(run: &Run, metrics: &BTreeMap<String, Vec<Metric>>) -> bool {
    let Some(asked) = run.plan.until_ci.as_deref().and_then(share_of_percent) else { return false };
    let reached = |test: &TestRun| match metrics.get(&test.kind).and_then(|metrics| metrics.first()) {
        Some(first) => first_width(test, &run.hosts, first).is_some_and(|width| width <= asked),
        None => true,
    };
    let mut tests = run.tests.iter().filter(|test| test.unavailable.is_none() && test.curve.is_none()).peekable();
    tests.peek().is_some() && tests.all(reached)
}

fn first_width(test: &TestRun, hosts: &BTreeMap<String, Host>, first: &Metric) -> Option<f64> {
    half_width(summaries(test, hosts, std::slice::from_ref(first)).first()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn is_narrow_after(width: Option<&str>, rates: &[u64]) -> bool {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(rates);
        builder.run.plan.until_ci = width.map(str::to_owned);
        is_narrow(&builder.run, &builder.context.metrics)
    }

    #[test]
    fn rounds_may_end_when_the_interval_is_as_narrow_as_was_asked() {
        let steady = [100_000, 100_400, 99_800, 100_200];
        assert!(is_narrow_after(Some("2%"), &steady));
        assert!(!is_narrow_after(Some("0.1%"), &steady));
        assert!(!is_narrow_after(Some("2%"), &steady[..1]));
        assert!(!is_narrow_after(None, &steady));
    }

    #[test]
    fn an_interval_that_stayed_too_wide_is_told() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[100_000, 150_000, 120_000]);
        builder.run.plan.until_ci = Some("2%".to_owned());
        let finding = builder.finding("interval-too-wide").unwrap();
        assert!(finding.title.contains("after 3 rounds"), "{}", finding.title);
        builder.run.plan.until_ci = None;
        assert_eq!(builder.finding("interval-too-wide"), None);
    }
}
