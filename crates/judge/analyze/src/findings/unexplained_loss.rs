//! Datagrams or frames were lost where no host has a counter.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::count,
    units::{Nanos, approximate, grouped, percent, ratio, rounded},
};

use super::FindingRule;
use crate::{
    conservation::unit_name,
    context::paired_tests,
    evidence::{TestEvidence, counter_evidence, explained_ratio},
};

/// A smaller share appears only in the table.
const REPORT_MIN: f64 = 1e-4;
/// At one packet in a thousand and above, loss matters.
const HOLDS_BACK: f64 = 1e-3;
/// A gap of at least this length is an outage and not a burst.
const OUTAGE: Nanos = Nanos::from_millis(100);
/// The metric of the most packets lost in a row.
const LOSS_BURST: &str = "loss_burst_max";

/// Reports the part of a loss that no place counted, and its pattern.
pub(crate) struct UnexplainedLoss;

impl FindingRule for UnexplainedLoss {
    fn id(&self) -> &'static str {
        "loss"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(sum) = &seen.test.conservation else { return Vec::new() };
        let n = u64::try_from(sum.n_unexplained).unwrap_or(0);
        let share = ratio(n, sum.n_sent).unwrap_or(0.0);
        // If nothing arrived, another finding reports that.
        if share < REPORT_MIN || sum.n_received == 0 {
            return Vec::new();
        }
        let tests = std::iter::once(seen.test).chain(paired_tests(seen.run, seen.test));
        let host = &seen.test.from;
        vec![Finding {
            id: self.id().to_owned(),
            short: "lost".to_owned(),
            title: format!(
                "{} of the {} were lost where no counter of these hosts shows it{}",
                percent(share),
                unit_name(seen.test.layer).unwrap_or("packets"),
                shape(seen)
            ),
            severity: if share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark },
            tests: tests.map(|test| test.name.clone()).collect(),
            evidence: vec![
                counter_evidence(host, count::SENT, sum.n_sent),
                counter_evidence(host, count::RECEIVED, sum.n_received),
                counter_evidence(host, "unexplained", n),
            ],
            explains: explained_ratio(n, Some(sum.n_sent - sum.n_received)),
            next: (seen.test.layer == Layer::Udp).then(|| next(seen)).flatten(),
        }]
    }
}

/// Describes whether packets were lost one by one, in bursts, or in an outage.
fn shape(seen: &TestEvidence<'_>) -> String {
    let longest = seen.test.summaries.iter().find(|summary| summary.metric.name == LOSS_BURST);
    let longest = longest.and_then(|summary| summary.trials.iter().copied().reduce(f64::max));
    let Some(n) = longest.map(rounded).filter(|n| *n > 0) else { return String::new() };
    let sent = seen.one_way().map_or(0, |(from, _)| seen.total(from, count::SENT));
    let lasted: u64 = seen
        .trials()
        .iter()
        .flat_map(|trial| trial.records.values().map(|record| record.measured_ns.1.0))
        .max()
        .unwrap_or(0);
    let n_trials = approximate(u64::try_from(seen.trials().len()).unwrap_or(1));
    let each = n_trials * approximate(lasted) / approximate(sent.max(1));
    let span = Nanos(rounded(each * approximate(n)));
    match n {
        _ if span >= OUTAGE => format!("; the longest gap is {} in a row, about {span} without any", grouped(n)),
        1..=3 => format!(", never more than {n} in a row"),
        _ => format!(", up to {} in a row", grouped(n)),
    }
}

/// Suggests a probe of the path from this host.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    let to = seen.test.to.as_deref().filter(|_| !seen.is_one_machine())?;
    let address = seen.run.hosts.get(to)?.address.as_deref()?;
    Some(NextStep {
        command: format!("fathom probe {address} --test route --allow {address}"),
        on: Some(seen.test.from.clone()),
        expected: Some("show the devices on the way; look at their drop counters".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        Better, Derivation, Metric, Side, Unit,
        metric::{MetricName, UnitAndSense},
        names::host,
    };

    fn lossy(sent: u64, received: u64, in_a_row: Option<u64>) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(sent, received)]);
        if let Some(n) = in_a_row {
            builder.total("target", LOSS_BURST, n);
            let from = Derivation::Total { side: Side::Responder, counter: LOSS_BURST.into() };
            let metric = Metric::of(
                MetricName(LOSS_BURST, "longest loss burst"),
                UnitAndSense(Unit::Count, Better::Lower),
                "RFC 7680",
                from,
            );
            builder.context.metrics.get_mut("udp_stream").unwrap().push(metric);
        }
        builder
    }

    #[test]
    fn loss_that_no_counter_saw_is_a_finding_with_its_share_and_shape() {
        let found = lossy(10_000, 5_900, Some(29)).finding("loss").unwrap();
        assert_eq!(
            found.title,
            "41 % of the datagrams were lost where no counter of these hosts shows it, up to 29 in a row"
        );
        assert_eq!((found.severity, found.explains), (Severity::HoldsBack, Some(1.0)));
        let single = lossy(10_000, 9_800, Some(2)).finding("loss").unwrap();
        assert!(single.title.ends_with("never more than 2 in a row"), "{}", single.title);
        let gap = lossy(10_000, 8_000, Some(1_739)).finding("loss").unwrap();
        assert!(gap.title.ends_with("1,739 in a row, about 209 ms without any"), "{}", gap.title);
    }

    #[test]
    fn few_are_a_remark_and_none_or_all_are_not_told_here() {
        assert_eq!(lossy(10_000, 9_995, None).finding("loss").unwrap().severity, Severity::Remark);
        assert_eq!(lossy(10_000, 10_000, None).finding("loss"), None);
        assert_eq!(lossy(10_000, 0, None).finding("loss"), None);
    }

    #[test]
    fn a_place_that_dropped_a_small_part_of_a_loss_does_not_stand_above_it() {
        let mut builder = lossy(100_000, 83_000, None);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 170);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].id, "loss");
        let buffer = run.findings.iter().find(|finding| finding.id == "udp-receive-buffer").unwrap();
        assert_eq!(buffer.severity, Severity::Remark, "it explains one in a hundred");
    }
}
