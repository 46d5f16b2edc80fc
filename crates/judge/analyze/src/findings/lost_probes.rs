//! Some probes of a series had no answer, between others that had one.

use std::collections::BTreeMap;

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::count::{SENT, TRANSACTIONS_LOST},
    units::{grouped, percent, ratio},
};

use super::{
    FindingRule,
    drops::BACKLOG_OVERFLOW,
    host_drops::{BAD_IP_CHECKSUMS, CONNTRACK_FULL, CONNTRACK_REFUSED, NEIGHBOR_UNRESOLVED, before_connections},
    link_down::LINK_DOWN,
    neighbor_changes::NEIGHBOR_CHANGES,
    packet_filter::{PacketFilter, filter_of_datagrams},
    planned_event::PLANNED_EVENT,
    unexplained_loss::LOSS,
};
use crate::evidence::{TestEvidence, counter_evidence};

/// One lost probe is told, and no more: the first of a series may wait for a neighbor, and any network loses a packet at times.
const MATTERS: u64 = 2;
/// At one probe in a thousand and above, loss matters.
const HOLDS_BACK: f64 = 1e-3;

/// Looks at the loss of probes. Those that are lost in a row are an outage, which has a finding of its own.
pub(crate) struct LostProbes;

/// Returns the probes of a series that were lost, and how many of them in outages.
fn lost(seen: &TestEvidence<'_>) -> Option<(u64, u64)> {
    let n_in_outages = seen.probes().flat_map(|(_, _, probe)| &probe.outages).map(|outage| outage.n_probes).sum();
    Some((seen.probes_lost()?, n_in_outages))
}

/// Returns true if most of the probes that were lost are single ones: a few in a row are no outage then, but chance.
pub(super) fn are_single(seen: &TestEvidence<'_>) -> bool {
    lost(seen).is_some_and(|(n, n_in_outages)| 2 * n_in_outages < n)
}

impl FindingRule for LostProbes {
    fn id(&self) -> &'static str {
        LOSS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A place that counts what it drops tells more.
        &[
            "filter-drops",
            "ingress-filter-drops",
            "reverse-path-filter",
            "no-route",
            "martian-packets",
            "other-mac",
            "device-receive-drops",
            "device-send-drops",
            "qdisc-drops",
            BACKLOG_OVERFLOW,
            BAD_IP_CHECKSUMS,
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
            NEIGHBOR_CHANGES,
            NEIGHBOR_UNRESOLVED,
            LINK_DOWN,
            PLANNED_EVENT,
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let n_sent = seen.total(Side::Initiator, SENT);
        let Some((n, _)) = lost(seen).filter(|(n, _)| *n > 0 && *n < n_sent && are_single(seen)) else {
            return Vec::new();
        };
        let Some(worst) = worst_pair(seen) else { return Vec::new() };
        let PairLoss { from, target, .. } = worst;
        let share = ratio(worst.n_lost, worst.n_sent).unwrap_or(0.0);
        let filter = filter_of_datagrams(seen, n);
        let of_pair = if seen.test.links.is_empty() { String::new() } else { format!(" of {from} to {target}") };
        let of = format!("{} of {} probes{of_pair} ({})", grouped(worst.n_lost), grouped(worst.n_sent), percent(share));
        let place = place_of(seen, n);
        let title = match (&filter, &place, seen.hosts().count()) {
            (Some(filter), ..) => format!("a packet filter on {} dropped {of}, one here and one there", filter.host),
            (None, Some((place, _)), _) => format!("{of} were lost, one here and one there: {place}"),
            (None, None, 1) => {
                format!("{of} had no answer, one here and one there; only the counters of {from} were read")
            }
            (None, None, _) => {
                format!("{of} were lost, one here and one there, where no counter of these hosts shows it")
            }
        };
        let evidence = [(SENT, worst.n_sent), ("without an answer", worst.n_lost)];
        let evidence = evidence.map(|(name, n)| counter_evidence(from, name, n));
        let route = NextStep::new(format!("fathom probe {target} --test route"))
            .on(from)
            .expected("show the hop from which on packets are lost");
        let severity =
            if worst.n_lost >= MATTERS && share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(self.id(), severity, "loss", title)
                .next(filter.as_ref().map(PacketFilter::next).or(place.map(|(_, next)| next)).unwrap_or(route))
                .evidence(evidence.into_iter().chain(filter.map(|filter| filter.evidence()))),
        ]
    }
}

/// Returns a place, of the hosts or of a device between them, that dropped about as many packets as a test lost probes, and the next step there.
fn place_of(seen: &TestEvidence<'_>, n_lost: u64) -> Option<(String, NextStep)> {
    let mut drops = seen.hosts().chain(seen.via()).flat_map(|host| before_connections(seen, host));
    let (place, _, next) = drops.find(|(_, n, _)| (n_lost / 2..=2 * n_lost).contains(n))?;
    Some((place, next))
}

/// The probes from a host to a target, in all trials.
struct PairLoss<'a> {
    from: &'a str,
    target: &'a str,
    n_sent: u64,
    n_lost: u64,
}

/// Returns the pair of hosts that lost most probes.
fn worst_pair<'a>(seen: &TestEvidence<'a>) -> Option<PairLoss<'a>> {
    let mut pairs: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for (from, record, probe) in seen.probes() {
        let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
        let (n_sent, n_lost) = pairs.entry((from, probe.target.as_str())).or_default();
        *n_sent += total(SENT);
        *n_lost += total(TRANSACTIONS_LOST);
    }
    let worst = pairs.into_iter().max_by_key(|(_, (_, n_lost))| *n_lost)?;
    let ((from, target), (n_sent, n_lost)) = worst;
    Some(PairLoss { from, target, n_sent, n_lost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES, NFT_DROPPED},
        probe::{OutageRecord, ProbeRecord},
        units::Nanos,
    };

    fn series(sent_and_answered: (u64, u64), in_a_row: &[u64]) -> RunBuilder {
        let outage = |n: &u64| OutageRecord {
            from_ns: Nanos::ZERO,
            from: "2026-01-01T00:00:00Z".to_owned(),
            length_ns: Some(Nanos::from_millis(30)),
            n_probes: *n,
        };
        let outages = in_a_row.iter().map(outage).collect();
        let mut builder = RunBuilder::new();
        builder.probed(
            sent_and_answered,
            ProbeRecord { target: "198.18.0.2".to_owned(), outages, ..ProbeRecord::default() },
        );
        builder
    }

    /// The findings above a remark.
    fn said(builder: &RunBuilder) -> Vec<String> {
        let found = builder.analyzed().findings.into_iter();
        found.filter(|found| found.severity >= Severity::HoldsBack).map(|found| found.id).collect()
    }

    #[test]
    fn single_probes_are_lost_and_many_in_a_row_are_an_outage() {
        let finding = series((200, 180), &[3]).finding(LOSS).unwrap();
        assert_eq!(
            finding.title,
            "20 of 200 probes (10 %) were lost, one here and one there, where no counter of these hosts shows it"
        );
        assert_eq!(said(&series((200, 180), &[3])), [LOSS], "three in a row happen by chance");
        assert_eq!(said(&series((200, 180), &[15])), ["outage"]);
        assert_eq!(said(&series((200, 199), &[])), Vec::<String>::new(), "a single one is a remark");
        assert_eq!(series((200, 200), &[]).finding(LOSS), None);
        assert_eq!(series((200, 0), &[]).finding(LOSS), None, "which is told otherwise");
    }

    #[test]
    fn a_place_that_counts_its_drops_leads() {
        let mut builder = series((200, 196), &[]);
        builder.host_counter("target", (NFT_DROPPED, "filter in 4"), 4);
        assert_eq!(said(&builder), ["filter-drops"], "a series is short");
        let mut builder = series((200, 180), &[]);
        builder.host_counter("target", (NFT_DROPPED, "filter in 4"), 20);
        assert_eq!(said(&builder), ["filter-drops"]);
        let mut builder = series((200, 180), &[]);
        builder.host_counter("target", (IP_IN_RECEIVES, ""), 220);
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 200);
        let title = builder.finding(LOSS).unwrap().title;
        assert!(title.starts_with("a packet filter on target dropped 20 of 200 probes"), "{title}");
    }
}
