//! How a rate grows with the number of companions: the tests of a run that differ only in that number.

use std::collections::BTreeSet;

use fathom_model::{Derivation, Growth, GrowthPoint, Run, Summary, TestRun, Unit, units::approximate};

use crate::summaries::main_rate;

/// A rate that grows by less than this part of what the companions grew by hardly grows.
const GROWS: f64 = 0.1;

/// Returns the growth up to the number of companions of a test, if it has the most of them. `None` if no other test differs only in that.
pub(crate) fn growth(run: &Run, test: &TestRun) -> Option<Growth> {
    // Datagrams of one byte are counted, not weighed.
    let counts = |summary: &&Summary| {
        summary.metric.unit == Unit::FramesPerSec && matches!(summary.metric.from, Derivation::Rate { .. })
    };
    let metric = test.summaries.iter().find(counts).or_else(|| main_rate(test))?.metric.name.to_string();
    let is_each = |name: &str| run.plan.tests.iter().any(|planned| planned.name == name && planned.each);
    let is_alike = |other: &&TestRun| {
        (&other.kind, &other.to, &other.options) == (&test.kind, &test.to, &test.options)
            && other.unavailable.is_none()
            && is_each(&other.name)
    };
    let mut points: Vec<GrowthPoint> =
        run.tests.iter().filter(is_alike).filter_map(|test| point(test, &metric)).collect();
    points.sort_by_key(|point| point.n_hosts);
    points.dedup_by_key(|point| point.n_hosts);
    let is_last = points.last().is_some_and(|last| last.test == test.name);
    let knee = knee(&points.iter().map(|point| (point.n_hosts, point.value)).collect::<Vec<_>>());
    (is_last && points.len() > 1).then_some(Growth { metric, points, knee })
}

fn point(test: &TestRun, metric: &str) -> Option<GrowthPoint> {
    let summary = test.summaries.iter().find(|summary| summary.metric.name == metric)?;
    let hosts: BTreeSet<&str> = test.links.iter().map(|link| link.from.as_str()).collect();
    let n_hosts = u64::try_from(hosts.len()).ok()?.max(1);
    Some(GrowthPoint { n_hosts, test: test.name.clone(), value: summary.value?, confidence: summary.confidence })
}

/// Returns the number of companions from which on more of them add hardly anything. `None` if the rate still grows at the last step.
fn knee(points: &[(u64, f64)]) -> Option<u64> {
    let float = |(n, rate): (u64, f64)| (approximate(n), rate);
    let last_growing = points.windows(2).rposition(|pair| grows(float(pair[0]), float(pair[1])));
    let place = last_growing.map_or(0, |step| step + 1);
    points.get(place).filter(|_| place + 1 < points.len()).map(|(n, _)| *n)
}

/// Returns true if a rate grows from one point to the next, as compared with the growth of what it is measured over.
pub(crate) fn grows((few, low): (f64, f64), (many, high): (f64, f64)) -> bool {
    let added = (many - few) / few.max(1.0);
    high >= low * (1.0 + GROWS * added)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_more_companions_add_nothing() {
        assert_eq!(knee(&[(1, 100.0), (2, 200.0), (4, 390.0), (8, 400.0)]), Some(4));
        assert_eq!(knee(&[(1, 100.0), (2, 104.0), (4, 103.0)]), Some(1));
        assert_eq!(knee(&[(1, 100.0), (2, 200.0), (4, 400.0)]), None, "the companions are the limit");
        assert_eq!(knee(&[(1, 100.0), (2, 101.0), (4, 150.0)]), None, "it grew at the last step");
        assert_eq!(knee(&[(8, 800.0), (16, 1600.0), (17, 1700.0)]), None, "the last step adds a single companion");
        assert_eq!((knee(&[(1, 1.0)]), knee(&[])), (None, None));
    }
}
