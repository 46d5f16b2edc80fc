//! Routers dropped packets because their time to live ran out (ICMP time exceeded, RFC 792 and RFC 4443).

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::{count, host as counter},
    units::ratio,
};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence},
    resent::most_resent,
};

/// The id of this rule's findings.
pub(super) const TIME_EXCEEDED: &str = "time-exceeded";
/// Less is lost for other reasons while a trace of the route by another program provokes the same messages.
const LOSS_MIN: f64 = 0.05;
/// Fewer connections fail for other reasons.
const ERRORS_MIN: u64 = 10;

/// Looks for ICMP messages of routers at a host of which packets were lost.
///
/// Routers send few of these messages (`net.ipv4.icmp_ratelimit`), so their number says nothing about the share of the loss.
pub(crate) struct TimeExceeded;

impl FindingRule for TimeExceeded {
    fn id(&self) -> &'static str {
        TIME_EXCEEDED
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Where fragments are missing, the receiver sends a message of the same type (code 1).
        let reassembles = || seen.hosts().any(|host| seen.growth(host, counter::IP_REASSEMBLY_FAILS, None) > 0);
        if matches!(seen.test.layer, Layer::Path | Layer::Frames) || !has_loss(seen) || reassembles() {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| of_host(seen, host)).collect()
    }
}

/// Returns true if enough is lost to matter: a trace of the route by another program provokes the same messages.
fn has_loss(seen: &TestEvidence<'_>) -> bool {
    let matters = |share: Option<f64>| share.is_some_and(|share| share >= LOSS_MIN);
    let total = |counter| seen.total(Side::Initiator, counter);
    let is_lost = match (seen.packets_lost(), &seen.test.conservation) {
        (Some(lost), Some(sum)) => matters(ratio(lost, sum.n_sent)),
        _ if seen.test.layer == Layer::Udp => matters(ratio(total(count::TRANSACTIONS_LOST), total(count::SENT))),
        _ => matters(most_resent(seen).map(|(_, share)| share)),
    };
    // A stream whose receiver is never heard sends nothing that could be lost.
    let records = seen.test.trials.iter().flat_map(|trial| trial.records.values());
    let n_errors: u64 = records.flat_map(|record| record.errors.values()).sum();
    is_lost || n_errors >= ERRORS_MIN || seen.got_nothing_through() && n_errors > 0
}

fn of_host(seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
    let n = Some(seen.growth(host, counter::ICMP_IN_TIME_EXCEEDED, None)).filter(|n| *n > 0)?;
    let title = format!(
        "routers drop packets of {host} because their time to live runs out: packets travel in a loop, or start with too small a TTL"
    );
    let other = seen.hosts().find(|other| *other != host);
    let address = other.and_then(|other| seen.run.hosts.get(other)?.address.as_deref());
    let next = address.map(|address| {
        NextStep::new(format!("fathom probe {address} --test route --allow {address}"))
            .on(host)
            .expected("show the routers in their order; in a loop, the same ones come again and again")
    });
    Some(
        seen.finding(TIME_EXCEEDED, Severity::HoldsBack, "TTL", title)
            .evidence([counter_evidence(host, counter::ICMP_IN_TIME_EXCEEDED, n)])
            .next(next),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_time_to_live_that_runs_out_leads_a_loss_and_nothing_else() {
        let told = |n_arrived: u64, n_not_reassembled: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, n_arrived)]);
            builder.host_counter("client", (counter::ICMP_IN_TIME_EXCEEDED, ""), 7);
            builder.host_counter("client", (counter::IP_REASSEMBLY_FAILS, ""), n_not_reassembled);
            builder.analyzed().findings.remove(0)
        };
        let finding = told(0, 0);
        assert_eq!((finding.id.as_str(), finding.severity), (TIME_EXCEEDED, Severity::Invalidates));
        assert!(finding.title.starts_with("routers drop packets of client"), "{}", finding.title);
        assert_eq!(told(500, 0).id, TIME_EXCEEDED, "the loss is its effect");
        assert_ne!(told(1000, 0).id, TIME_EXCEEDED, "somebody traced a route");
        assert_ne!(told(500, 9).id, TIME_EXCEEDED, "these are about fragments");
    }

    #[test]
    fn a_trace_of_the_route_beside_a_small_loss_is_no_loop() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 980)]);
        builder.host_counter("client", (counter::ICMP_IN_TIME_EXCEEDED, ""), 7);
        assert_eq!(builder.finding(TIME_EXCEEDED), None);
    }
}
