//! ACKs of a TCP stream were lost on their way back to its sender.

use fathom_model::{
    Finding, NextStep, Severity,
    names::{
        host::{DEV_TX_DROPPED, IP_OUT_DISCARDS, QDISC_DROPPED, TCP_LOSS_PROBES, TCP_OUT_SEGMENTS, TCP_TIMEOUTS},
        tcp,
    },
    units::{Bytes, Nanos, grouped, percent, ratio},
};

use super::{
    FindingRule,
    damaged_frames::DAMAGED_FRAMES,
    host_drops::{CONNTRACK_FULL, CONNTRACK_REFUSED},
    link_down::LINK_DOWN,
    neighbor_changes::NEIGHBOR_CHANGES,
    planned_event::PLANNED_EVENT,
    retransmissions::{Drops, most_dropped},
    ring_drops::RING_DROPS,
};
use crate::{
    evidence::{TestEvidence, counter_evidence, text_evidence},
    gap,
    resent::{LOSS_MATTERS, PROBE_MIN, TIMEOUT_MIN},
    segment_loss::{Carried, Unacknowledged, Way, unacknowledged, ways},
};

/// An ACK covers all that came before it (RFC 9293 section 3.4), so that fewer lost ones than this share have no effect that can be seen.
const SHARE_MIN: f64 = 1e-3;
/// Fewer lost ACKs are single events.
const LOST_MIN: u64 = 10;
/// A sender that waited for timers for this share of its time sent markedly less.
const WAITED_MIN: f64 = 0.05;
/// Where packets leave a host. All other places drop what arrives.
const ON_THE_WAY_OUT: [&str; 3] = [DEV_TX_DROPPED, IP_OUT_DISCARDS, QDISC_DROPPED];

/// Compares the ACKs that the receiver of a stream sent with those that its sender received, by the counts of both kernels (`tcpi_segs_out` and
/// `tcpi_segs_in` of `struct tcp_info`).
///
/// Where all ACKs of what is in flight are lost, the sender waits for a timer, and begins again with few segments in flight. On a long path so many
/// ACKs are under way that it hardly ever does. It is silent about connections of which only one end is known, or whose last bytes did not arrive; and
/// about requests and answers, whose ACKs are in the segments of their payload. A device that takes out ACKs on purpose (an ACK filter) looks the same.
pub(crate) struct AcksLost;

impl FindingRule for AcksLost {
    fn id(&self) -> &'static str {
        "acks-lost"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            LINK_DOWN,
            NEIGHBOR_CHANGES,
            PLANNED_EVENT,
            "local-shaper",
            "qdisc-drops",
            "device-send-drops",
            "device-receive-drops",
            "filter-drops",
            "ingress-filter-drops",
            "reverse-path-filter",
            "bad-tcp-checksums",
            "backlog-overflow",
            RING_DROPS,
            DAMAGED_FRAMES,
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // A place that dropped a few packets did not drop these.
        let is_place = ![LINK_DOWN, NEIGHBOR_CHANGES, PLANNED_EVENT].contains(&cause);
        let is_uncounted = |way: &Way<'_>| is_told(way) && dropped_at(seen, way).is_none();
        is_place && ways(seen, Carried::Acks).iter().any(is_uncounted)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let of_all = unacknowledged(seen).map(|found| self.of_all(seen, found));
        let ways = ways(seen, Carried::Acks);
        let on_ways = ways.iter().filter(|way| is_told(way)).map(|way| self.on_way(seen, way));
        of_all.into_iter().chain(on_ways).collect()
    }
}

impl AcksLost {
    /// Reports a connection that ended for want of ACKs, whatever else was lost.
    fn of_all(&self, seen: &TestEvidence<'_>, found: Unacknowledged<'_>) -> Finding {
        let Unacknowledged { sender, receiver, n_arrived, n_acknowledged } = found;
        let title = format!(
            "the ACKs that {receiver} sends to {sender} are lost: {receiver} had received {} of a connection, and a second later {sender} had ACKs for {}",
            Bytes(n_arrived),
            Bytes(n_acknowledged)
        );
        seen.finding(self.id(), Severity::HoldsBack, "lost ACKs", title)
            .evidence([
                text_evidence(receiver, tcp::BYTES_RECEIVED, grouped(n_arrived)),
                text_evidence(sender, tcp::BYTES_ACKED, grouped(n_acknowledged)),
            ])
            .next(who_drops(seen, (receiver, sender)))
    }

    fn on_way(&self, seen: &TestEvidence<'_>, way: &Way<'_>) -> Finding {
        let Way { from, to, n_sent, n_arrived, .. } = *way;
        let timers = Timers::of(seen, to);
        let waited = waited_for_acks(seen, way, timers).filter(|(_, share)| *share >= WAITED_MIN);
        let severity = if waited.is_some() { Severity::HoldsBack } else { Severity::Remark };
        let at = dropped_at(seen, way).map_or_else(String::new, |Drops { n, host, place, .. }| {
            format!(", and {host} dropped {} packets {place}", grouped(n))
        });
        let cost = waited.map_or_else(String::new, |(timers, share)| {
            format!(
                ": {to} waited for timers {} times, for about {} of the time or more",
                grouped(timers.n()),
                percent(share)
            )
        });
        let title = format!(
            "{} of the ACKs that {from} sent to {to} did not arrive ({} of {}){at}{cost}",
            percent(lost_share(way)),
            grouped(way.n_lost()),
            grouped(n_sent)
        );
        seen.finding(self.id(), severity, "lost ACKs", title)
            .evidence([
                counter_evidence(from, tcp::SEGMENTS_OUT, n_sent),
                counter_evidence(to, tcp::SEGMENTS_IN, n_arrived),
                counter_evidence(to, TCP_TIMEOUTS, timers.n_timeouts),
                counter_evidence(to, TCP_LOSS_PROBES, timers.n_probes),
            ])
            .explains(waited.and_then(|(_, share)| gap::explained_by_least_time(seen, share)))
            .next(waited.map(|_| who_drops(seen, (from, to))))
    }
}

/// Suggests to look for what drops ACKs on their way from one host to another.
fn who_drops(seen: &TestEvidence<'_>, (from, to): (&str, &str)) -> NextStep {
    NextStep::new(format!("nft list ruleset; ip -s link show dev {}", seen.interface(to))).on(to).expected(format!(
        "show a rule or a device that drops them; if none does, the network from {from} to {to} does"
    ))
}

fn lost_share(way: &Way<'_>) -> f64 {
    ratio(way.n_lost(), way.n_sent).unwrap_or(0.0)
}

fn is_told(way: &Way<'_>) -> bool {
    way.n_lost() >= LOST_MIN && lost_share(way) >= SHARE_MIN
}

/// The place on the way that counted about as many drops as ACKs were lost: one drop is one ACK.
fn dropped_at<'a>(seen: &TestEvidence<'a>, way: &Way<'_>) -> Option<Drops<'a>> {
    let about_as_many = way.n_lost().div_ceil(2)..=2 * way.n_lost();
    most_dropped(seen, *about_as_many.end(), |drops| {
        let ends_there = if ON_THE_WAY_OUT.contains(&drops.counter) { way.to } else { way.from };
        drops.host != ends_there && about_as_many.contains(&drops.n)
    })
}

/// The timers that ran out on a host.
#[derive(Debug, Clone, Copy)]
struct Timers {
    n_timeouts: u64,
    n_probes: u64,
}

impl Timers {
    fn of(seen: &TestEvidence<'_>, host: &str) -> Self {
        Self { n_timeouts: seen.growth(host, TCP_TIMEOUTS, None), n_probes: seen.growth(host, TCP_LOSS_PROBES, None) }
    }

    /// Returns the same with no more than so many, the longest of them.
    fn at_most(self, n: u64) -> Self {
        let n_timeouts = self.n_timeouts.min(n);
        Self { n_timeouts, n_probes: self.n_probes.min(n - n_timeouts) }
    }

    fn n(self) -> u64 {
        self.n_timeouts + self.n_probes
    }

    /// The least time that passed until they ran out.
    fn time_min(self) -> Nanos {
        TIMEOUT_MIN * self.n_timeouts + PROBE_MIN * self.n_probes
    }
}

/// Returns the timers for which the sender of a stream waited because of lost ACKs, with their share of its connections' time; `None` if lost payload,
/// which makes a sender wait too, matters.
fn waited_for_acks(seen: &TestEvidence<'_>, acks: &Way<'_>, timers: Timers) -> Option<(Timers, f64)> {
    let payload = ways(seen, Carried::Payload).into_iter().find(|way| (way.from, way.to) == (acks.to, acks.from))?;
    if payload.lost_share_max() >= LOSS_MATTERS {
        return None;
    }
    // The host counts the timers of all programs. Each of the test's sends a segment again, and comes from a lost ACK.
    let timers = timers.at_most(payload.n_resent.min(acks.n_lost()));
    // The host counts the timers of all of its connections. Those that nobody sampled have their part of its segments.
    let all = ratio(seen.growth(acks.to, TCP_OUT_SEGMENTS, None), payload.n_sent)?.max(1.0);
    let waited = ratio(timers.time_min().0, payload.connection_time.0)? / all;
    Some((timers, waited.min(1.0)))
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::host::{DEV_RX_FRAMES, NEIGHBOR_CHANGES as CHANGED_NEIGHBORS, NFT_DROPPED, TCP_RETRANS_SEGMENTS},
        record::{Flow, FlowSample},
    };

    use super::*;
    use crate::run_builder::RunBuilder;

    /// A stream from client to target of which so many segments and ACKs arrived, with so many timeouts and probes of its sender.
    fn stream(n_arrived: u64, n_acks_arrived: u64, (n_timeouts, n_probes): (u64, u64)) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.counted_stream((n_arrived, n_acks_arrived));
        builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("client", (TCP_TIMEOUTS, ""), n_timeouts);
        builder.host_counter("client", (TCP_LOSS_PROBES, ""), n_probes);
        builder
    }

    #[test]
    fn acks_whose_loss_makes_a_sender_wait_lead() {
        let finding = stream(100_000, 4_000, (2, 10)).finding("acks-lost").unwrap();
        let title = "20 % of the ACKs that target sent to client did not arrive (1,000 of 5,000): client waited for timers 12 times, for about \
                     42 % of the time or more";
        assert_eq!((finding.title.as_str(), finding.severity), (title, Severity::HoldsBack));
        assert_eq!(finding.next.unwrap().command, "nft list ruleset; ip -s link show dev eth0");
    }

    #[test]
    fn a_loss_that_made_nobody_wait_is_a_remark_and_a_tiny_one_is_none() {
        let found = |n_acks, timers| stream(100_000, n_acks, timers).finding("acks-lost");
        let remark = found(4_000, (0, 10)).unwrap();
        let title = "20 % of the ACKs that target sent to client did not arrive (1,000 of 5,000)";
        assert_eq!((remark.title.as_str(), remark.severity, remark.next), (title, Severity::Remark, None));
        // The answer to a SYN is counted where it arrives only.
        assert_eq!([found(5_001, (2, 10)), found(4_991, (2, 10))], [None, None]);
        assert_eq!(found(4_990, (2, 10)).unwrap().severity, Severity::HoldsBack);
    }

    #[test]
    fn timers_beside_lost_payload_are_not_those_of_lost_acks() {
        let severity = |n_arrived, n_acks| stream(n_arrived, n_acks, (2, 10)).finding("acks-lost").unwrap().severity;
        assert_eq!(severity(96_000, 4_800), Severity::Remark, "4 % of either");
        assert_eq!(
            severity(96_000, 4_000),
            Severity::Remark,
            "4 % of the payload, which cost more than 20 % of the ACKs"
        );
        assert_eq!(severity(2_300, 4_000), Severity::Remark, "a device joined segments: 4,000 may be lost");
        assert_eq!(severity(99_950, 4_000), Severity::HoldsBack, "one in two thousand");
    }

    #[test]
    fn timers_of_other_programs_are_not_those_of_a_few_lost_acks() {
        let severity = |n_acks| stream(100_000, n_acks, (0, 900)).finding("acks-lost").unwrap().severity;
        assert_eq!([severity(4_985), severity(4_000)], [Severity::Remark, Severity::HoldsBack]);
    }

    #[test]
    fn the_part_of_the_timers_that_connections_have_which_nobody_sampled_is_theirs() {
        let mut builder = stream(100_000, 4_000, (2, 10));
        builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 1_000_000);
        assert_eq!(builder.finding("acks-lost").unwrap().severity, Severity::Remark);
    }

    #[test]
    fn a_connection_of_which_only_one_end_is_known_or_whose_bytes_are_missing_tells_nothing() {
        let without = |change: fn(&mut Flow)| {
            let mut builder = stream(100_000, 4_000, (2, 10));
            let record = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
            change(&mut record.flows[0]);
            builder.finding("acks-lost")
        };
        assert!(without(|_| ()).is_some());
        assert_eq!(without(|flow| flow.id = "b:2 nat:3".to_owned()), None);
        assert_eq!(without(|flow| *flow.samples[0].values.get_mut(tcp::BYTES_RECEIVED).unwrap() -= 2), None);
        assert_eq!(without(|flow| *flow.samples[0].values.get_mut(tcp::BYTES_SENT).unwrap() = 1), None, "it sends too");
    }

    #[test]
    fn a_place_that_counted_the_drops_is_named_and_is_the_cause() {
        let found = |n_dropped| {
            let mut builder = stream(100_000, 4_000, (2, 10));
            builder.host_counter("client", (DEV_RX_FRAMES, "eth0"), 5_000);
            builder.host_counter("client", (NFT_DROPPED, "input"), n_dropped);
            builder.finding("acks-lost").unwrap()
        };
        let finding = found(1_000);
        let words = "(1,000 of 5,000), and client dropped 1,000 packets by a filter rule: client waited";
        assert!(finding.title.contains(words), "{}", finding.title);
        assert_eq!(finding.severity, Severity::Remark);
        let finding = found(100);
        assert!(!finding.title.contains("filter"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::HoldsBack, "most were dropped elsewhere");
    }

    #[test]
    fn an_entry_of_the_neighbor_that_changes_is_the_cause() {
        let mut builder = stream(100_000, 4_000, (2, 10));
        builder.host_counter("target", (CHANGED_NEIGHBORS, "eth0 198.18.0.1"), 4);
        assert_eq!(builder.finding("acks-lost").unwrap().severity, Severity::Remark);
    }

    #[test]
    fn a_window_that_stays_closed_for_want_of_an_ack_is_an_effect() {
        let mut builder = stream(100_000, 4_000, (2, 10));
        let samples = &mut builder.run.tests[0].trials[0].records.get_mut("client").unwrap().flows[0].samples;
        let mut first = samples[0].clone();
        first.at_ns = Nanos::from_millis(200);
        first.values.values_mut().for_each(|value| *value = 0);
        samples.insert(0, first);
        for (name, value) in [(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)] {
            samples.iter_mut().zip([0, value]).for_each(|(sample, value)| {
                sample.values.insert(name.to_owned(), value);
            });
        }
        assert_eq!(builder.finding("receive-window").unwrap().severity, Severity::Remark);
    }

    #[test]
    fn payload_that_arrived_and_was_never_acknowledged_is_no_black_hole() {
        let found = |(n_arrived, n_acknowledged): (u64, u64), n_segments: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[0]);
            let ends = [
                ("client", "a:1 b:2", tcp::BYTES_ACKED, n_acknowledged),
                ("target", "b:2 a:1", tcp::BYTES_RECEIVED, n_arrived),
            ];
            for (host, id, counter, n) in ends {
                let at = |seconds| FlowSample {
                    at_ns: Nanos::from_secs(seconds),
                    values: [(counter.to_owned(), n), (tcp::SEGMENTS_IN.to_owned(), n_segments * seconds)].into(),
                };
                let record = builder.run.tests[0].trials[0].records.get_mut(host).unwrap();
                record.flows = vec![Flow { id: id.to_owned(), samples: (1..=4).map(at).collect() }];
                record.errors.add("drain: full-size segments are sent again and never acknowledged", 1);
            }
            let run = builder.analyzed();
            run.findings.iter().map(|finding| (finding.id.clone(), finding.title.clone())).collect::<Vec<_>>()
        };
        let all = found((40_000, 7_241), 10);
        let told = "the ACKs that target sends to client are lost: target had received 39.1 KiB of a connection, and a second later client had ACKs for 7.07 KiB";
        assert!(all.contains(&("acks-lost".to_owned(), told.to_owned())), "{all:#?}");
        assert!(!all.iter().any(|(id, _)| id == "path-mtu-black-hole"), "{all:#?}");
        let is_hole = |all: Vec<(String, String)>| all.iter().any(|(id, _)| id == "path-mtu-black-hole");
        assert!(is_hole(found((7_240, 7_241), 10)));
        assert!(is_hole(found((40_000, 7_241), 0)), "nothing arrives any more");
    }

    #[test]
    fn what_is_sent_again_or_never_acknowledged_for_want_of_acks_is_an_effect() {
        let mut builder = stream(100_000, 4_000, (2, 10));
        builder.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), 4_000);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("drain: full-size segments are sent again and never acknowledged", 1);
        let severity = |id| builder.finding(id).map(|finding| finding.severity);
        let effects = [severity("retransmissions"), severity("path-mtu-black-hole")];
        assert_eq!((severity("acks-lost"), effects), (Some(Severity::HoldsBack), [Some(Severity::Remark); 2]));
    }
}
