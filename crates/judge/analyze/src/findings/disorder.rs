//! Datagrams or frames arrived out of order, or more than once.

use fathom_model::{
    Finding, Layer, Severity,
    names::count,
    units::{percent, ratio},
};

use super::FindingRule;
use crate::{
    conservation::unit_name,
    evidence::{TestEvidence, counter_evidence},
};

/// A smaller share appears only in the table.
const REPORT_MIN: f64 = 1e-3;
/// At this share and above, applications that take datagrams in order (voice, tunnels) notice.
const HOLDS_BACK: f64 = 5e-3;

/// One kind of disorder, found by its counter at the receiver.
pub(crate) struct Disorder {
    id: &'static str,
    counter: &'static str,
    /// The words after the share and the unit.
    event: &'static str,
    cause: &'static str,
}

/// Later datagrams arrived before earlier ones.
pub(crate) const REORDERING: Disorder = Disorder {
    id: "reordering",
    counter: count::REORDERED,
    event: "arrived after later ones",
    cause: "several paths, links or queues share one flow",
};

/// One datagram arrived several times.
pub(crate) const DUPLICATES: Disorder = Disorder {
    id: "duplicates",
    counter: count::DUPLICATES,
    event: "arrived more than once",
    cause: "a device on the way sends them twice, or two paths lead to the target",
};

impl FindingRule for Disorder {
    fn id(&self) -> &'static str {
        self.id
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp | Layer::Frames, Some((_, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let Some(receiver) = seen.host_of(to) else { return Vec::new() };
        let (n, received) = (seen.total(to, self.counter), seen.total(to, count::RECEIVED));
        let Some(share) = ratio(n, received).filter(|share| *share >= REPORT_MIN) else { return Vec::new() };
        let units = unit_name(seen.test.layer).unwrap_or("packets");
        let severity = if share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        let title = format!("{} of the {units} {}: {}", percent(share), self.event, self.cause);
        vec![seen.finding(self.id, severity, self.id, title).evidence([
            counter_evidence(receiver, self.counter, n),
            counter_evidence(receiver, count::RECEIVED, received),
        ])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_path_that_reorders_or_doubles_is_named_with_its_share() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 10_000)]);
        assert_eq!((builder.finding("reordering"), builder.finding("duplicates")), (None, None));
        builder.total("target", count::REORDERED, 200);
        builder.total("target", count::DUPLICATES, 40);
        let (reordered, doubled) = (builder.finding("reordering").unwrap(), builder.finding("duplicates").unwrap());
        assert!(reordered.title.starts_with("2.0 % of the datagrams arrived after later ones"), "{}", reordered.title);
        assert_eq!((reordered.severity, doubled.severity), (Severity::HoldsBack, Severity::Remark));
    }
}
