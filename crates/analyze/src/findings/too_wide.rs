//! The rounds ended before the interval was as narrow as was asked for.

use fathom_model::{
    Evidence, Finding, NextStep, Severity,
    units::{percent, share_of_percent},
};

use super::{Cause, Evidenced};
use crate::precision::half_width;

/// Compares the interval of the first value with the wish of the plan.
pub(crate) struct TooWide;

impl Cause for TooWide {
    fn id(&self) -> &'static str {
        "interval-too-wide"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let asked = seen.run.plan.until_ci.as_deref().and_then(share_of_percent);
        let first = seen.test.summaries.first().filter(|_| seen.test.curve.is_none());
        let Some(((asked, first), width)) = asked.zip(first).zip(first.and_then(half_width)) else { return Vec::new() };
        if width <= asked {
            return Vec::new();
        }
        let n_rounds = seen.trials().len();
        vec![Finding {
            id: self.id().to_owned(),
            short: "wide interval".to_owned(),
            title: format!(
                "the interval of {} is still {} wide to one side after {n_rounds} rounds; {} was asked for",
                first.metric.title,
                percent(width),
                percent(asked)
            ),
            severity: Severity::Remark,
            tests: vec![seen.test.name.clone()],
            evidence: vec![Evidence {
                host: seen.test.from.clone(),
                counter: format!("{} in each round", first.metric.name),
                value: first.trials.iter().map(|value| first.metric.show(*value)).collect::<Vec<_>>().join(", "),
            }],
            explains: None,
            next: Some(NextStep {
                command: format!("{} --rounds {}", seen.run.command, 4 * n_rounds),
                on: None,
                expected: Some("halve the interval, if the rounds differ by chance alone".to_owned()),
            }),
        }]
    }
}
