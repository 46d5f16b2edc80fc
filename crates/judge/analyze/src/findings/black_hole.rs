//! Long packets are lost without a `too big` message.

use std::collections::BTreeSet;

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::count,
    units::{counted, grouped, ratio},
};

use super::{
    FindingRule, fragment_filter::FRAGMENT_FILTER, martians, mtu_mismatch::MTU_MISMATCH,
    packet_filter::filter_of_datagrams, time_exceeded::TIME_EXCEEDED,
};
use crate::{
    change::{Change, smaller_datagrams},
    evidence::{TestEvidence, counter_evidence, text_evidence},
};

/// The id of these findings.
pub(super) const BLACK_HOLE: &str = "path-mtu-black-hole";
/// At this share of datagrams and above, all are lost: the short ones that mark the end of a stream still pass.
const ALL: f64 = 0.99;
/// Every path carries packets of this size (RFC 791).
const SIZE_MIN: u64 = 576;

/// Looks for a packet length from which the path MTU search got neither an answer nor an error message.
pub(crate) struct BlackHole;

impl FindingRule for BlackHole {
    fn id(&self) -> &'static str {
        BLACK_HOLE
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[MTU_MISMATCH]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let mut found = seen.probes().filter_map(|(host, _, probe)| {
            let path_mtu = probe.path_mtu.as_ref()?;
            Some((host, probe, path_mtu.mtu_bytes?, path_mtu.vanishing_from_bytes?))
        });
        let Some((host, probe, mtu, from)) = found.next() else { return Vec::new() };
        let pairs = found.map(|(host, probe, ..)| (host, &probe.target)).chain([(host, &probe.target)]);
        let (of, others) = match pairs.collect::<BTreeSet<_>>().len() {
            _ if seen.test.links.is_empty() => (String::new(), String::new()),
            1 => (format!(" from {host}"), String::new()),
            n => (format!(" from {host}"), format!(", as do those between {}", counted(n as u64 - 1, "other pair"))),
        };
        let what = format!("packets of {} B and more{of} to {} vanish{others}", grouped(from), probe.target);
        let title = format!("a black hole: {what}, and no router says that they are too big (ICMP is missing)");
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "black hole", title)
                .evidence([text_evidence(
                    host,
                    "path_mtu_bytes",
                    format!("{} B answered, {} B neither answered nor refused", grouped(mtu), grouped(from)),
                )])
                .next(NextStep::new("sysctl -w net.ipv4.tcp_mtu_probing=1").on(host).expected(
                    "let TCP find the size by itself, until ICMP type 3 code 4 (IPv6: type 2) is let through",
                )),
        ]
    }
}

/// Looks for datagrams of which all vanished, although the ends had exchanged small ones before the start.
pub(crate) struct UdpBlackHole;

impl FindingRule for UdpBlackHole {
    fn id(&self) -> &'static str {
        BLACK_HOLE
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[FRAGMENT_FILTER, MTU_MISMATCH, TIME_EXCEEDED]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let (Some(sender), Some(receiver)) = (seen.host_of(from), seen.host_of(to)) else { return Vec::new() };
        // A refusal is an answer, which a black hole does not give.
        if [from, to].into_iter().any(|side| seen.records(side).any(|record| !record.errors.is_empty())) {
            return Vec::new();
        }
        let (sent, bytes) = (seen.total(from, count::SENT), seen.total(from, count::BYTES_SENT));
        let is_unexplained = seen.test.conservation.as_ref().is_some_and(|sum| {
            // Where not even the short marks of the end come, no size passes.
            if sum.n_received == 0 {
                return false;
            }
            let is_all = |n: u64| ratio(n, sum.n_sent).is_some_and(|share| share >= ALL);
            // A packet that a host dropped for its addresses has reached it.
            let n_martian: u64 = martians::dropped(seen, receiver).iter().map(|(_, n)| n).sum();
            let is_filtered = |n| filter_of_datagrams(seen, n).is_some();
            u64::try_from(sum.n_unexplained).is_ok_and(|n| is_all(n.saturating_sub(n_martian)) && !is_filtered(n))
        });
        // Where long ones arrive too, the others are lost for another reason, such as a rate.
        let arrived = seen.total(to, count::BYTES_RECEIVED).checked_div(seen.total(to, count::RECEIVED));
        if arrived.is_some_and(|size| size >= SIZE_MIN) {
            return Vec::new();
        }
        let mean = bytes.checked_div(sent);
        let size = seen.test.options.size("size").map(|size| size.0).or(mean).filter(|size| *size >= SIZE_MIN);
        let Some(size) = size.filter(|_| is_unexplained) else { return Vec::new() };
        let title = format!(
            "a black hole: {sender} and {receiver} exchange small datagrams, but those of {} B vanish and no router says that \
                 they are too big (ICMP is missing)",
            grouped(size)
        );
        vec![
            seen.finding(BLACK_HOLE, Severity::HoldsBack, "black hole", title)
                .evidence([
                    counter_evidence(sender, count::SENT, sent),
                    counter_evidence(receiver, count::RECEIVED, seen.total(to, count::RECEIVED)),
                ])
                .explains(1.0)
                .next(
                    seen.repeat_with_option("size", "500B")
                        .map(|command| NextStep::new(command).expected("pass if the MTU of the path is the reason")),
                ),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        smaller_datagrams(seen)
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::host,
        probe::{PathMtuRecord, ProbeRecord},
    };

    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn only_packets_that_vanish_without_a_word_are_a_black_hole() {
        for (vanishing_from_bytes, is_found) in [(None, false), (Some(1401), true)] {
            let path_mtu = PathMtuRecord {
                mtu_bytes: Some(1400),
                device_bytes: 1500,
                vanishing_from_bytes,
                ..PathMtuRecord::default()
            };
            let mut builder = RunBuilder::new();
            builder.probed((9, 5), ProbeRecord { path_mtu: Some(path_mtu), ..ProbeRecord::default() });
            assert_eq!(builder.finding("path-mtu-black-hole").is_some(), is_found);
        }
    }

    #[test]
    fn a_black_hole_between_some_pairs_is_told_once_with_their_number() {
        let found = |vanishing_from_bytes| {
            let found = PathMtuRecord { mtu_bytes: Some(1400), vanishing_from_bytes, ..PathMtuRecord::default() };
            ProbeRecord { path_mtu: Some(found), ..ProbeRecord::default() }
        };
        let mut builder = RunBuilder::new();
        let hole = || found(Some(1401));
        builder.probed_by(&[("a", "b", (9, 5), found(None)), ("a", "c", (9, 5), hole()), ("b", "c", (9, 5), hole())]);
        let title = builder.finding("path-mtu-black-hole").unwrap().title;
        let told = "packets of 1,401 B and more from a to address of c vanish, as do those between 1 other pair, and";
        assert!(title.contains(told), "{title}");
    }

    #[test]
    fn datagrams_that_all_vanish_after_small_ones_passed_are_a_black_hole() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 2)]);
        builder.total("client", count::BYTES_SENT, 1_450_000);
        let run = builder.analyzed();
        assert_eq!(run.findings[0].short, "black hole", "{:#?}", run.findings);
        assert_eq!(run.verdict.state, fathom_model::VerdictState::Invalid);
        builder.host_counter("target", (host::IP_IN_RECEIVES, ""), 1_000);
        builder.host_counter("target", (host::IP_IN_DELIVERS, ""), 10);
        assert_eq!(builder.finding("path-mtu-black-hole"), None, "a packet filter on target drops them");
        builder.host_counter("target", (host::IP_IN_DELIVERS, ""), 1_000);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("sendmmsg: connection refused", 500);
        assert_eq!(builder.analyzed().findings[0].id, "no-listener", "refused is not lost");
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().errors =
            fathom_model::FailureCounts::default();
        builder.total("client", count::BYTES_SENT, 64_000);
        assert_eq!(builder.finding("path-mtu-black-hole"), None, "these fit any path");
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 0)]);
        builder.total("client", count::BYTES_SENT, 1_450_000);
        assert_eq!(builder.finding("path-mtu-black-hole"), None, "nothing of any size arrives");
    }

    #[test]
    fn a_rate_that_passes_long_datagrams_is_no_black_hole() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(100_000, 500)]);
        builder.total("client", count::BYTES_SENT, 140_000_000);
        builder.total("target", count::BYTES_RECEIVED, 700_000);
        assert_eq!(builder.finding(BLACK_HOLE), None);
    }
}
