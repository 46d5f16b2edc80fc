//! The interfaces of the two ends have different MTUs.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::count,
    probe::PathMtuRecord,
    units::{Bytes, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// The id of this rule's findings.
pub(super) const MTU_MISMATCH: &str = "mtu-mismatch";
/// The headers of a datagram over IPv4 (RFC 791, RFC 768); they are longer over IPv6.
const HEADERS: u64 = 28;
/// From this share of lost datagrams on, those that do not fit are the reason: of equal ones, none fits.
const NEARLY_ALL: f64 = 0.99;

/// Compares the MTUs of the two ends. It is a remark, because path MTU discovery copes with it where a router is between them.
///
/// On one link it does not: the end with the smaller MTU drops larger frames without a word.
pub(crate) struct MtuMismatch;

impl FindingRule for MtuMismatch {
    fn id(&self) -> &'static str {
        MTU_MISMATCH
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Of probes, only a search for the path MTU sends packets as large as the interface takes.
        if seen.test.layer == Layer::Path && found_mtu(seen).is_none() {
            return Vec::new();
        }
        let mtu = |host| seen.environment(host)?.get(seen.interface(host), "mtu_bytes")?.parse::<u64>().ok();
        let ends: Vec<(&str, u64)> = seen.hosts().filter_map(|host| Some((host, mtu(host)?))).collect();
        let [(from, of_from), (to, of_to)] = ends.as_slice() else { return Vec::new() };
        if of_from == of_to {
            return Vec::new();
        }
        let end = |host, mtu: u64| format!("{} of {host} has {}", seen.interface(host), Bytes(mtu).exact());
        let evidence =
            |(host, mtu): &(&str, u64)| text_evidence(host, format!("mtu_bytes {}", seen.interface(host)), mtu);
        let address = seen.run.hosts.get(*to).and_then(|host| host.address.as_deref());
        let title = format!(
            "the MTU of the two ends differs: {}, {}; on one link the larger frames of one end are dropped at the other",
            end(from, *of_from),
            end(to, *of_to)
        );
        let is_met = do_not_fit(seen, &ends) || is_limit_of_path(seen, *of_from, *of_to);
        let severity = if is_met { Severity::HoldsBack } else { Severity::Remark };
        vec![seen.finding(self.id(), severity, "mtu differs", title).evidence(ends.iter().map(evidence)).next(
            if seen.test.layer == Layer::Path {
                let small = if of_from < of_to { from } else { to };
                let command = NextStep::new(format!("ip link show dev {}", seen.interface(small))).on(small);
                Some(command.expected("show its MTU; give both ends the same one"))
            } else {
                address.map(|address| {
                    NextStep::new(format!("fathom probe {address} --test mtu"))
                        .on(from)
                        .expected("show the largest packet that the path carries")
                })
            },
        )]
    }
}

/// Returns the result of a search for the path MTU that found one.
fn found_mtu<'a>(seen: &TestEvidence<'a>) -> Option<&'a PathMtuRecord> {
    seen.probes().find_map(|(_, _, probe)| probe.path_mtu.as_ref().filter(|found| found.mtu_bytes.is_some()))
}

/// Returns true if a search found about the MTU of the receiver, which takes less than the sender: a device may take the tag of a VLAN in addition.
fn is_limit_of_path(seen: &TestEvidence<'_>, of_sender: u64, of_receiver: u64) -> bool {
    const TAG: u64 = 4;
    // A router with a smaller link says that a packet is too big; on one link, it vanishes.
    let is_silent = |found: &PathMtuRecord| found.vanishing_from_bytes.is_some() && found.too_big.is_empty();
    let is_that_of = |mtu: u64| (of_receiver..=of_receiver.saturating_add(TAG)).contains(&mtu);
    of_receiver < of_sender
        && found_mtu(seen).is_some_and(|found| is_silent(found) && found.mtu_bytes.is_some_and(is_that_of))
}

/// Returns true if the datagrams of a test are larger than what their receiver takes, and most of them are lost.
fn do_not_fit(seen: &TestEvidence<'_>, ends: &[(&str, u64)]) -> bool {
    let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return false };
    let mtu_of = |side| ends.iter().find(|(host, _)| seen.host_of(side) == Some(host)).map(|(_, mtu)| *mtu);
    let (Some(of_sender), Some(of_receiver)) = (mtu_of(from), mtu_of(to)) else { return false };
    let sent = seen.total(from, count::SENT);
    let lost = seen.packets_lost().and_then(|lost| ratio(lost, sent)).unwrap_or(0.0);
    let packet = seen.total(from, count::BYTES_SENT).checked_div(sent).unwrap_or(0) + HEADERS;
    // Larger datagrams than the sender's own MTU are sent in fragments of that size.
    packet.min(of_sender) > of_receiver && lost >= NEARLY_ALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn ends_with_different_mtus_are_a_remark() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.wire("10000000000", "1500");
        assert_eq!(builder.finding("mtu-mismatch"), None, "both have 1500");
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "mtu_bytes", "9000");
        let finding = builder.finding("mtu-mismatch").unwrap();
        assert_eq!(finding.severity, Severity::Remark);
        assert!(
            finding.title.starts_with("the MTU of the two ends differs: eth0 of client has 9000"),
            "{}",
            finding.title
        );
        assert_eq!(finding.next.unwrap().command, "fathom probe 198.18.0.2 --test mtu");
    }

    #[test]
    fn an_end_whose_mtu_is_unknown_is_not_compared() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "mtu_bytes", "9000");
        assert_eq!(builder.finding("mtu-mismatch"), None);
    }

    #[test]
    fn datagrams_that_the_other_end_does_not_take_are_lost_for_its_mtu() {
        let severity = |n_bytes: u64, n_arrived: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, n_arrived)]);
            builder.total("client", count::BYTES_SENT, 1_000 * n_bytes);
            builder.wire("10000000000", "1500");
            builder.run.hosts.get_mut("target").unwrap().environment.note("eth0", "mtu_bytes", "1300");
            builder.finding(MTU_MISMATCH).map(|finding| finding.severity)
        };
        assert_eq!(severity(1_400, 2), Some(Severity::Invalidates), "nothing else is the reason");
        assert_eq!([severity(1_200, 2), severity(1_400, 999)], [Some(Severity::Remark); 2]);
    }
}
