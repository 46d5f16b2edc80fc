//! The rounds ended before the confidence interval was as narrow as requested.

use fathom_model::{
    Finding, NextStep, Severity,
    units::{Nanos, percent, share_of_percent},
};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::{
    evidence::{TestEvidence, text_evidence},
    precision::half_width,
};

/// Compares the interval of the first value with the width that the plan requests.
pub(crate) struct IntervalTooWide;

impl FindingRule for IntervalTooWide {
    fn id(&self) -> &'static str {
        "interval-too-wide"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["other-programs", PLANNED_EVENT]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let asked = seen.run.plan.until_ci.as_deref().and_then(share_of_percent);
        let first = seen.test.summaries.first().filter(|_| seen.test.curve.is_none());
        let Some(((asked, first), width)) = asked.zip(first).zip(first.and_then(half_width)) else { return Vec::new() };
        if width <= asked {
            return Vec::new();
        }
        let n_rounds = seen.trials().len();
        let title = format!(
            "the interval of {} is still {} wide to one side after {n_rounds} rounds; {} was asked for",
            first.metric.title,
            percent(width),
            percent(asked)
        );
        vec![
            seen.finding(self.id(), Severity::Remark, "wide interval", title)
                .evidence([text_evidence(
                    &seen.test.from,
                    format!("{} in each round", first.metric.name),
                    first.trials.iter().map(|value| first.metric.show(*value)).collect::<Vec<_>>().join(", "),
                )])
                .next(seen.repeat_run_command(&more_rounds_command(seen, 4 * n_rounds)).map(|command| {
                    NextStep::new(command).expected("halve the interval, if the rounds differ by chance alone")
                })),
        ]
    }
}

/// Returns the options for more rounds of the same length. `--duration` covers all rounds together.
fn more_rounds_command(seen: &TestEvidence<'_>, n_rounds: usize) -> String {
    let planned = seen.run.plan.tests.iter().find(|test| test.name == seen.test.name);
    let round = planned.and_then(|test| test.duration.parse::<Nanos>().ok());
    let all = round.map(|round| Nanos(round.0.saturating_mul(n_rounds as u64)));
    let duration = all.filter(|_| seen.run.command.contains("--duration"));
    let duration = duration.map(|all| format!(" --duration {}", all.exact())).unwrap_or_default();
    format!("--rounds {n_rounds}{duration}")
}
