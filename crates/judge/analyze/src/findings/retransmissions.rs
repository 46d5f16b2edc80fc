//! TCP retransmitted segments.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{
        CONNTRACK_DROPPED, DEV_RX_DAMAGED, DEV_RX_DROPPED, DEV_RX_MISSED, DEV_TX_DROPPED, DEV_XDP_DROPPED,
        IP_IN_DISCARDS, IP_OUT_DISCARDS, IP_RP_FILTER_DROPPED, IP_UNDELIVERED, NFQUEUE_DROPPED, NFT_DROPPED,
        QDISC_DROPPED, QDISC_IN_DROPPED, SOFTNET_DROPPED, TCP_BACKLOG_DROPS, TCP_DSACK_SEGMENTS, TCP_IN_CSUM_ERRORS,
        TCP_LISTEN_DROPS, TCP_LISTEN_OVERFLOWS, TCP_LOSS_PROBES, TCP_OUT_SEGMENTS, TCP_RECEIVE_QUEUE_DROPS,
        TCP_REORDERINGS, TCP_RETRANS_SEGMENTS, TCP_TIMEOUTS,
    },
    units::{approximate, grouped, percent, ratio},
};

use super::{
    FindingRule,
    damaged_frames::DAMAGED_FRAMES,
    host_drops::{ACCEPT_QUEUE_STEP, CONNTRACK_FULL, CONNTRACK_REFUSED, NO_ROUTE_ID},
    neighbor_changes::NEIGHBOR_CHANGES,
    packet_filter::{PacketFilter, show_rules},
    planned_event::PLANNED_EVENT,
    ring_drops::RING_DROPS,
    rule::DEVICE_CORE_FULL,
    stall::{STALL, longest_silence},
};
use crate::{
    change::{Change, loss_tolerant_control, lower_stream_rate},
    closed_load::{TimerWaits, silence_loses},
    evidence::{TestEvidence, counter_evidence},
    gap,
    resent::{LOSS_MATTERS, SEGMENTS_OF_A_DROP, all_resent, most_resent, resent_by},
    segment_loss::{Carried, Way, ways},
};

/// If at least this share of the retransmitted segments had already arrived, hardly any was lost: of those that reordering made, nearly all are told
/// by D-SACK, and ACKs with one may be lost.
const NEEDLESS: f64 = 0.75;
/// If so many had, the rest is what was lost.
const PARTLY_NEEDLESS: f64 = 0.5;
/// A smaller part is not told.
const PART_MIN: f64 = 0.1;
/// A counter explains why segments were sent again needlessly from this share of them on.
const EXPLAINS: f64 = 0.25;
/// BBR keeps its rate while less than this share is lost: its third version yields above it (`bbr_loss_thresh`), its first far later.
const TOLERATED: f64 = 0.02;
/// Counters of places where each frame is one segment, as the host has joined none yet.
const OF_SINGLE_FRAMES: [&str; 3] = [DEV_RX_MISSED, DEV_RX_DAMAGED, DEV_XDP_DROPPED];
/// Counters of places in a host that can drop a segment, with their description. If two counted the same, the later one wins.
const DROPS: [(&str, &str); 19] = [
    (DEV_TX_DROPPED, "at a device"),
    (DEV_RX_DROPPED, "at a device"),
    (IP_OUT_DISCARDS, "by ip"),
    (IP_IN_DISCARDS, "by ip"),
    (TCP_IN_CSUM_ERRORS, "for a wrong checksum"),
    (DEV_RX_MISSED, "in a full receive ring"),
    (DEV_RX_DAMAGED, "as damaged frames"),
    (SOFTNET_DROPPED, "in the backlog of a core"),
    (DEV_XDP_DROPPED, "by an XDP program"),
    (QDISC_IN_DROPPED, "by a tc filter"),
    (IP_RP_FILTER_DROPPED, "by the reverse path filter"),
    (CONNTRACK_DROPPED, "by connection tracking"),
    (NFQUEUE_DROPPED, "in the queue of a program (NFQUEUE)"),
    (TCP_BACKLOG_DROPS, "at a socket whose backlog was full"),
    (TCP_RECEIVE_QUEUE_DROPS, "at a socket whose receive queue was full"),
    (NFT_DROPPED, "by a filter rule"),
    (QDISC_DROPPED, "in a queueing discipline"),
    (TCP_LISTEN_DROPS, "at a listening socket"),
    // The end of a handshake, and the first data behind it, are sent again until there is room.
    (TCP_LISTEN_OVERFLOWS, "in an accept queue"),
];

/// The short name of a finding whose segments found no room in an accept queue.
const LISTEN_QUEUE: &str = "listen queue";

/// Compares retransmitted with sent segments on each host, and derives the reason from the counters.
pub(crate) struct Retransmissions;

impl FindingRule for Retransmissions {
    fn id(&self) -> &'static str {
        "retransmissions"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "local-shaper",
            "resets",
            "qdisc-drops",
            "device-send-drops",
            DEVICE_CORE_FULL,
            "filter-drops",
            "ingress-filter-drops",
            "bad-tcp-checksums",
            "backlog-overflow",
            "connect-delays",
            RING_DROPS,
            DAMAGED_FRAMES,
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
            "latency-under-load",
            // A connection that a queue holds back lost little itself; the rest are overflows of that queue.
            "path-full",
            "outage",
            "acks-lost",
            NEIGHBOR_CHANGES,
            "targets-lost-by-event",
            PLANNED_EVENT,
            NO_ROUTE_ID,
            STALL,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        if cause == STALL {
            return !silence_loses(seen, longest_silence(seen));
        }
        // These places drop single packets. If they are few, most were lost elsewhere.
        let counter = match cause {
            RING_DROPS => DEV_RX_MISSED,
            DAMAGED_FRAMES => DEV_RX_DAMAGED,
            CONNTRACK_FULL | CONNTRACK_REFUSED => CONNTRACK_DROPPED,
            _ => return false,
        };
        let on_cards =
            |host| seen.cards(host).into_iter().map(|card| seen.growth(host, counter, Some(card))).sum::<u64>();
        let on_host =
            |host| if counter == CONNTRACK_DROPPED { seen.growth(host, counter, None) } else { on_cards(host) };
        let most_resent = seen.hosts_of_tcp().map(|host| resent_by(seen, host).0).max().unwrap_or(0);
        2 * seen.hosts().map(on_host).max().unwrap_or(0) < most_resent
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp) {
            return Vec::new();
        }
        let waits = TimerWaits::of(seen);
        let matters = |share: f64| share > LOSS_MATTERS || waits.is_some() && share > 0.0;
        let worst = all_resent(seen).into_iter().filter(|(_, share)| matters(*share)).map(|found| {
            let reason = ResendReason::of(seen, found.0);
            (found, matches!(reason, ResendReason::Needless(..)), reason)
        });
        // What one end lost, the other one may have sent again needlessly, as no ACK came with it.
        let Some(((host, share), needless, reason)) = worst.min_by_key(|(_, needless, _)| *needless) else {
            return Vec::new();
        };
        let always = [TCP_RETRANS_SEGMENTS, TCP_OUT_SEGMENTS, TCP_TIMEOUTS];
        let counters = always.into_iter().chain([TCP_DSACK_SEGMENTS, TCP_LOSS_PROBES, TCP_REORDERINGS]);
        let counters = counters.map(|counter| (counter, seen.growth(host, counter, None)));
        let shown = counters.filter(|(counter, n)| *n > 0 || always.contains(counter));
        // Nobody waited for segments that had arrived.
        let waits = waits.filter(|_| !needless);
        // Losses that cost no time hold nothing back where the test has all that it asked for.
        let is_tolerated = || {
            let tolerates = seen.congestion_control(host).is_some_and(|name| name.starts_with("bbr"));
            // An answer ends when its last segment is there, whatever the rate.
            tolerates && share < TOLERATED && seen.test.layer == Layer::Tcp
        };
        let is_harmless = needless || waits.is_none() && (seen.reached_target() || is_tolerated());
        let severity = if is_harmless { Severity::Remark } else { Severity::HoldsBack };
        let waited = waits.as_ref().map_or_else(String::new, |waits| {
            format!("; waiting until they were sent again took {} of the time", percent(waits.share))
        });
        let mut reason_text = reason.text(seen);
        let ((again, _), known) = (resent_by(seen, host), n_needless(seen, host));
        if !needless && ratio(known, again).is_some_and(|part| part >= PART_MIN) {
            let part = format!("{} of {} needlessly, and the others were lost", grouped(known), grouped(again));
            reason_text = reason_text.replacen("they were lost", &part, 1);
        }
        let title =
            format!("{} of the TCP segments of {host} were retransmitted, {reason_text}{waited}", percent(share));
        let shown = shown.map(|(counter, n)| counter_evidence(host, counter, n));
        let (short, place, next) = match &reason {
            ResendReason::Dropped(drops) if drops.counter == TCP_LISTEN_OVERFLOWS => {
                let next = NextStep::new("ss -ltn").on(drops.host).expected(ACCEPT_QUEUE_STEP);
                (LISTEN_QUEUE, Some(counter_evidence(drops.host, drops.counter, drops.n)), next)
            }
            ResendReason::Dropped(drops) if drops.counter == IP_UNDELIVERED => {
                ("resent", Some(counter_evidence(drops.host, drops.counter, drops.n)), show_rules(drops.host))
            }
            _ => {
                let command = format!("tc -s qdisc show dev {0}; ip -s link show dev {0}", seen.interface(host));
                let expected = "show whether this host's own queue drops, or the network behind it";
                ("resent", None, NextStep::new(command).on(host).expected(expected))
            }
        };
        vec![
            seen.finding(self.id(), severity, short, title)
                .evidence(shown.chain(place))
                .explains(waits.and_then(|waits| gap::explained_by_least_time(seen, waits.share)))
                .next((!is_harmless).then_some(next)),
        ]
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        // No other congestion control gets room in an accept queue.
        if finding.short == LISTEN_QUEUE {
            return None;
        }
        let tolerant = loss_tolerant_control(seen, &finding.evidence.first()?.host);
        // Where the sender tolerates losses already, a lower rate shows whether a queue or a policer makes them.
        tolerant.or_else(|| lower_stream_rate(seen, "retransmitted_ratio").map(Change::into_clue))
    }
}

/// Returns true if the path loses so many segments that TCP can have only a few in flight, whatever the cores do.
///
/// At a loss of one in a hundred its window is about twelve segments (RFC 3649: 1.2 divided by the root of the loss). What a host
/// dropped itself may be the work of its cores, and does not count.
pub(super) fn path_limits_window(seen: &TestEvidence<'_>) -> bool {
    const LIMITS: f64 = 0.01;
    let is_own = || {
        let again = seen.hosts_of_tcp().map(|host| seen.growth(host, TCP_RETRANS_SEGMENTS, None)).max().unwrap_or(0);
        let places = seen.hosts().flat_map(|host| DROPS.map(|(counter, _)| dropped(seen, host, counter)));
        places.max().is_some_and(|n| n > 0 && n.saturating_mul(SEGMENTS_OF_A_DROP) >= again)
    };
    most_resent(seen).is_some_and(|(host, share)| {
        share >= LIMITS && !matches!(ResendReason::of(seen, host), ResendReason::Needless(..))
    }) && !is_own()
}

/// What a host dropped by a counter: that of an interface is of the test's one, beside which others drop frames of unknown protocols.
fn dropped(seen: &TestEvidence<'_>, host: &str, counter: &str) -> u64 {
    let interface = seen.interface(host);
    // A counter without this instance is one of cores, or of the whole host.
    let of = seen.has_counter_of(host, counter, interface).then_some(interface);
    let redirects = if counter == QDISC_DROPPED { seen.redirects(host) } else { Vec::new() };
    let of_redirects: u64 = redirects.into_iter().map(|device| seen.growth(host, counter, Some(device))).sum();
    seen.growth(host, counter, of) + of_redirects
}

/// Drops at one place of a host.
pub(super) struct Drops<'a> {
    pub(super) n: u64,
    pub(super) host: &'a str,
    pub(super) counter: &'static str,
    /// Its description, such as `by a filter rule`.
    pub(super) place: &'static str,
}

/// Returns the place that dropped most on the hosts of a test and the device between them, of those that dropped enough.
///
/// The packet filter of a host whose rules have no counter that was read is one of them ([`IP_UNDELIVERED`]). Its drops are the rest of other counts,
/// which has packets of others too, so that it is none if there are more than the test can have lost.
pub(super) fn most_dropped<'a>(
    seen: &TestEvidence<'a>,
    n_lost_max: u64,
    is_enough: impl Fn(&Drops<'_>) -> bool,
) -> Option<Drops<'a>> {
    let of_host =
        |host: &'a str| DROPS.map(|(counter, place)| Drops { n: dropped(seen, host, counter), host, counter, place });
    let filters = seen.hosts().filter_map(|host| PacketFilter::of(seen, host));
    let filters = filters.filter(|filter| filter.n_dropped <= n_lost_max).map(|filter| Drops {
        n: filter.n_dropped,
        host: filter.host,
        counter: IP_UNDELIVERED,
        place: "by a packet filter",
    });
    let all = seen.hosts().chain(seen.via()).flat_map(of_host).chain(filters);
    all.filter(|drops| drops.n > 0 && is_enough(drops)).max_by_key(|drops| drops.n)
}

/// Why segments were sent again, according to the counters.
enum ResendReason<'a> {
    /// So many of so many had already arrived, for this reason.
    Needless(u64, u64, &'static str),
    /// A host dropped segments; this place dropped most.
    Dropped(Drops<'a>),
    /// No counter shows it. Most were lost on the way to this host, if the counts of both ends tell.
    Unknown(Option<&'a str>),
}

impl<'a> ResendReason<'a> {
    fn of(seen: &TestEvidence<'a>, host: &str) -> Self {
        let (again, all) = resent_by(seen, host);
        let known = n_needless(seen, host);
        let arrived = ratio(known, again).unwrap_or(0.0);
        let lost = ratio(again - known, all).unwrap_or(0.0);
        if arrived >= NEEDLESS || arrived >= PARTLY_NEEDLESS && lost <= LOSS_MATTERS {
            return Self::Needless(known, again, needless_why(seen, host, known));
        }
        // What was dropped at once may hold many segments, but a few drops are those of other packets.
        let is_enough = |drops: &Drops<'_>| {
            let is_single = OF_SINGLE_FRAMES.contains(&drops.counter) && !seen.is_memory(drops.host);
            drops.n.saturating_mul(if is_single { 2 } else { SEGMENTS_OF_A_DROP }) >= again
        };
        // Each of them is sent again, unless what was sent again was dropped too.
        most_dropped(seen, again.saturating_mul(2), is_enough)
            .map_or_else(|| Self::Unknown(lost_on_way_to(seen, host)), Self::Dropped)
    }

    fn text(&self, seen: &TestEvidence<'_>) -> String {
        match self {
            Self::Needless(known, again, why) => {
                format!("{} of {} needlessly ({why})", grouped(*known), grouped(*again))
            }
            Self::Dropped(Drops { n, host, counter, .. }) if *counter == TCP_LISTEN_OVERFLOWS => {
                format!("as the accept queue of a server on {host} overflowed {} times", grouped(*n))
            }
            Self::Dropped(Drops { n, host, place, .. }) => {
                format!("they were lost; {host} dropped {} {place}", grouped(*n))
            }
            Self::Unknown(to) => {
                let on_way = to.map_or_else(String::new, |to| format!(" on the way to {to},"));
                format!("they were lost{on_way} where {}", where_no_counter_shows(seen))
            }
        }
    }
}

/// Returns how many of the segments that a host sent again had already arrived, by the D-SACKs of its peers (RFC 2883).
fn n_needless(seen: &TestEvidence<'_>, host: &str) -> u64 {
    seen.growth(host, TCP_DSACK_SEGMENTS, None).min(resent_by(seen, host).0)
}

/// Returns the host that did not receive most of the segments that a host sent again, by the counts of both.
fn lost_on_way_to<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<&'a str> {
    let again = seen.growth(host, TCP_RETRANS_SEGMENTS, None);
    // More than were sent again were not lost, but joined by a device; ACKs among them are not sent again.
    let is_known = |way: &Way<'_>| way.n_lost() <= 2 * way.n_resent && 2 * way.n_lost() >= again;
    let from_host = ways(seen, Carried::Payload).into_iter().filter(|way| way.from == host);
    from_host.filter(is_known).max_by_key(Way::n_lost).map(|way| way.to)
}

/// Returns why segments that had arrived were sent again: what the kernel counted most of, if it is enough.
fn needless_why(seen: &TestEvidence<'_>, host: &str, n_needless: u64) -> &'static str {
    let reasons = [
        (TCP_REORDERINGS, "reordering"),
        (TCP_LOSS_PROBES, "tail loss probes: the ACKs of last segments were late or lost"),
        (TCP_TIMEOUTS, "timeouts: their ACKs were late or lost"),
    ];
    let counted = reasons.map(|(counter, why)| (seen.growth(host, counter, None), why));
    let most = counted.into_iter().max_by_key(|(n, _)| *n);
    let enough = most.filter(|(n, _)| approximate(*n) >= EXPLAINS * approximate(n_needless));
    enough.map_or("reordering, or late or lost ACKs", |(_, why)| why)
}

/// Returns the words for a loss that no counter shows. The host of a server that is no host of the run has counters that nobody read.
pub(super) fn where_no_counter_shows(seen: &TestEvidence<'_>) -> String {
    if seen.is_server_host_unread() {
        return format!("no counter of {} shows it; the counters of the server's host were not read", seen.test.from);
    }
    "no counter of these hosts shows it".to_owned()
}

#[cfg(test)]
mod tests {
    use fathom_model::names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES};

    use super::*;
    use crate::run_builder::RunBuilder;

    fn with_retransmissions(n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), n);
        builder
    }

    #[test]
    fn a_full_table_of_connections_explains_no_more_than_it_dropped() {
        let severity = |n_dropped: u64| {
            let mut builder = with_retransmissions(500);
            builder.total("client", fathom_model::names::count::CONNECTIONS, 20);
            builder.host_counter("target", (CONNTRACK_DROPPED, ""), n_dropped);
            builder.finding("retransmissions").unwrap().severity
        };
        assert_eq!([severity(10), severity(400)], [Severity::HoldsBack, Severity::Remark]);
    }

    #[test]
    fn a_path_that_loses_segments_is_found_at_its_sender() {
        let finding = with_retransmissions(500).finding("retransmissions").unwrap();
        let words = "0.50 % of the TCP segments of client were retransmitted, they were lost where no counter of these hosts shows it";
        assert_eq!(finding.title, words);
        assert_eq!((finding.evidence[0].value.as_str(), finding.severity), ("1,000", Severity::HoldsBack));
    }

    #[test]
    fn few_losses_hold_back_what_waits_for_their_timers() {
        let with_timeouts = |n_timeouts: u64, n_slow: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(10_000, 4);
            builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 100_000);
            builder.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), 10);
            builder.host_counter("client", (TCP_TIMEOUTS, ""), n_timeouts);
            builder.host_counter("target", (SOFTNET_DROPPED, "cpu1"), 10);
            builder.host_counter("target", (fathom_model::names::host::SOFTNET_PROCESSED, "cpu1"), 2_000_000);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let mut times = fathom_model::Histogram::new();
            times.record_n(fathom_model::units::Nanos::from_micros(100).0, 10_000);
            times.record_n(fathom_model::units::Nanos::from_millis(210).0, n_slow);
            record.distributions.insert(fathom_model::names::distribution::SERVICE_TIME.to_owned(), times);
            builder
        };
        let builder = with_timeouts(15, 10);
        let finding = builder.finding("backlog-overflow").unwrap();
        assert_eq!((finding.severity, finding.explains.map(percent).as_deref()), (Severity::HoldsBack, Some("62 %")));
        let finding = builder.finding("retransmissions").unwrap();
        assert_eq!(finding.severity, Severity::Remark);
        assert!(
            finding
                .title
                .ends_with("in the backlog of a core; waiting until they were sent again took 62 % of the time"),
            "{}",
            finding.title
        );
        assert_eq!(with_timeouts(0, 10).finding("retransmissions"), None, "a server that is slow at times");
    }

    #[test]
    fn a_share_is_of_all_that_was_sent_those_that_only_repeat_included() {
        let title = with_retransmissions(100_000).finding("retransmissions").unwrap().title;
        assert!(title.starts_with("50 % of the TCP segments"), "{title}");
    }

    #[test]
    fn what_had_arrived_already_was_sent_again_needlessly() {
        let mut builder = with_retransmissions(500);
        builder.host_counter("client", (TCP_DSACK_SEGMENTS, ""), 450);
        let finding = builder.finding("retransmissions").unwrap();
        let words = "900 of 1,000 needlessly (reordering, or late or lost ACKs)";
        assert!(finding.title.ends_with(words), "no counter says why: {}", finding.title);
        assert_eq!((finding.severity, finding.next), (Severity::Remark, None));
        for (counter, n, why) in [
            (TCP_REORDERINGS, 150, "(reordering)"),
            (TCP_LOSS_PROBES, 440, "(tail loss probes: the ACKs of last segments were late or lost)"),
            (TCP_TIMEOUTS, 450, "(timeouts: their ACKs were late or lost)"),
        ] {
            builder.host_counter("client", (counter, ""), n);
            let title = builder.finding("retransmissions").unwrap().title;
            assert!(title.ends_with(why), "{title}");
        }
    }

    #[test]
    fn on_one_machine_segments_are_lost_too_and_the_place_is_named_where_it_counts() {
        let mut builder = with_retransmissions(2_500);
        builder.one_machine();
        builder.driver("veth");
        builder.host_counter("client", (TCP_DSACK_SEGMENTS, ""), 30);
        let finding = builder.finding("retransmissions").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert!(
            finding.title.ends_with("they were lost where no counter of these hosts shows it"),
            "{}",
            finding.title
        );
        builder.host_counter("client", (QDISC_DROPPED, "eth0"), 1_113);
        let title = builder.finding("retransmissions").unwrap().title;
        assert!(title.ends_with("client dropped 2,226 in a queueing discipline"), "{title}");
    }

    #[test]
    fn a_packet_filter_is_named_where_ip_delivered_fewer_packets_than_it_received() {
        let mut builder = with_retransmissions(500);
        builder.host_counter("target", (IP_IN_RECEIVES, ""), 9_000);
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 8_700);
        let finding = builder.finding("retransmissions").unwrap();
        let words = "they were lost; target dropped 600 by a packet filter";
        assert!(finding.title.ends_with(words), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "nft list ruleset");
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 7_900);
        let title = builder.finding("retransmissions").unwrap().title;
        assert!(title.ends_with("no counter of these hosts shows it"), "most are packets of others: {title}");
    }

    #[test]
    fn the_way_on_which_segments_were_lost_is_told_if_both_ends_counted_them() {
        let title = |n_arrived| {
            let mut builder = RunBuilder::new();
            builder.counted_stream((n_arrived, 5_000));
            builder.host_counter("client", (TCP_OUT_SEGMENTS, ""), 96_000);
            builder.host_counter("client", (TCP_RETRANS_SEGMENTS, ""), 4_000);
            builder.finding("retransmissions").unwrap().title
        };
        let words = "they were lost on the way to target, where no counter of these hosts shows it";
        assert!(title(96_100).ends_with(words), "{}", title(96_100));
        let elsewhere = "they were lost where no counter of these hosts shows it";
        assert!(title(99_000).ends_with(elsewhere), "most arrived");
        assert!(title(2_300).ends_with(elsewhere), "they arrived joined");
    }

    #[test]
    fn segments_that_an_accept_queue_had_no_room_for_were_not_lost_on_the_path() {
        let mut builder = with_retransmissions(500);
        builder.host_counter("target", (TCP_LISTEN_OVERFLOWS, ""), 370);
        let finding = builder.finding("retransmissions").unwrap();
        let words = "were retransmitted, as the accept queue of a server on target overflowed 740 times";
        assert!(finding.title.ends_with(words), "{}", finding.title);
        assert_eq!((finding.short.as_str(), finding.next.unwrap().command.as_str()), ("listen queue", "ss -ltn"));
    }

    #[test]
    fn where_the_host_of_the_server_was_not_read_its_counters_are_not_said_to_be_clean() {
        let mut builder = with_retransmissions(500);
        for server in [Some("target"), None] {
            builder.run.tests[0].to = server.map(str::to_owned);
            let title = builder.finding("retransmissions").unwrap().title;
            assert_eq!(title.ends_with("the counters of the server's host were not read"), server.is_none(), "{title}");
        }
    }

    #[test]
    fn one_segment_in_two_thousand_is_no_cause() {
        assert_eq!(with_retransmissions(50).finding("retransmissions"), None);
    }

    #[test]
    fn of_few_segments_a_share_is_told_if_enough_were_sent_again() {
        let of_slow_requests = |again| {
            let mut builder = RunBuilder::new();
            builder.http(1000, 10);
            builder.host_counter("target", (TCP_OUT_SEGMENTS, ""), 700);
            builder.host_counter("target", (TCP_RETRANS_SEGMENTS, ""), again);
            builder.finding("retransmissions").map(|finding| finding.severity)
        };
        assert_eq!(of_slow_requests(3), None);
        assert_eq!(of_slow_requests(14), Some(Severity::HoldsBack));
    }

    #[test]
    fn losses_without_which_the_test_has_what_it_asked_for_are_a_remark() {
        let mut builder = with_retransmissions(500);
        builder.run.tests[0].options.set("rate", "8k");
        let finding = builder.finding("retransmissions").unwrap();
        assert_eq!((finding.severity, finding.next), (Severity::Remark, None), "{}", finding.title);
    }

    #[test]
    fn segments_of_which_half_had_arrived_were_lost_too() {
        let told = |n_resent: u64, n_needless: u64| {
            let mut builder = with_retransmissions(n_resent);
            builder.host_counter("client", (TCP_DSACK_SEGMENTS, ""), n_needless);
            let finding = builder.finding("retransmissions").unwrap();
            (finding.severity, finding.title)
        };
        let (severity, title) = told(2_000, 1_100);
        assert_eq!(severity, Severity::HoldsBack);
        let words = "2,200 of 4,000 needlessly, and the others were lost where no counter of these hosts shows it";
        assert!(title.ends_with(words), "{title}");
        assert_eq!(told(150, 85).0, Severity::Remark, "the rest is less than matters");
        assert_eq!(told(2_000, 1_600).0, Severity::Remark);
    }

    #[test]
    fn frames_that_a_card_dropped_explain_no_more_segments_than_they_are() {
        let title = |n: u64| {
            let mut builder = with_retransmissions(500);
            builder.driver("ice");
            builder.host_counter("target", (DEV_RX_MISSED, "eth0"), n);
            builder.finding("retransmissions").unwrap().title
        };
        assert!(title(20).ends_with("where no counter of these hosts shows it"), "{}", title(20));
        assert!(title(400).ends_with("target dropped 800 in a full receive ring"), "{}", title(400));
    }
}
