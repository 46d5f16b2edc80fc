//! Datagrams or frames were lost where no host has a counter.

use fathom_model::{
    Cause, Finding, Histogram, Layer, NextStep, Severity, Side, Summary, Timeline, Unit,
    names::{count, distribution, host},
    units::{BitsPerSec, Nanos, approximate, grouped, percent, ratio, rounded},
};

use super::{
    FindingRule,
    black_hole::BLACK_HOLE,
    damaged_frames::DAMAGED_FRAMES,
    drops::BACKLOG_OVERFLOW,
    fragment_filter::FRAGMENT_FILTER,
    generator_limited::OFFERED,
    host_drops::{BAD_IP_CHECKSUMS, CONNTRACK_FULL, CONNTRACK_REFUSED, NEIGHBOR_UNRESOLVED},
    link_down::LINK_DOWN,
    neighbor_changes::NEIGHBOR_CHANGES,
    other_programs::OTHER_PROGRAMS,
    packet_filter::{PacketFilter, filter_of_datagrams},
    planned_event::{PLANNED_EVENT, missing_share},
    rule::DEVICE_CORE_FULL,
    time_exceeded::TIME_EXCEEDED,
};
use crate::{
    change::{Change, lower_rate},
    conservation::unit_name,
    context::paired_tests,
    evidence::{TestEvidence, counter_evidence, explained_ratio},
    same_way::{carried_bits, share_a_limit},
    summaries::main_rate,
    window::record_of,
};

/// A smaller share appears only in the table.
const REPORT_MIN: f64 = 1e-4;
/// At one packet in a thousand and above, loss matters.
const HOLDS_BACK: f64 = 1e-3;
/// A gap of at least this length is an outage and not a burst.
const OUTAGE: Nanos = Nanos::from_millis(100);
/// Fewer packets without an arrival between them are those of a slow sender.
const OUTAGE_PACKETS_MIN: u64 = 10;
/// The metric of the most packets lost in a row.
const LOSS_BURST_MAX: &str = "loss_burst_max";
/// The finding of a loss without a pattern that names its cause.
pub(super) const LOSS: &str = "loss";
/// A program waits for a core for some slices of 3 ms (`sysctl_sched_base_slice`, kernel/sched/fair.c), and not so long.
const LONGER_THAN_CORE_WAITS: Nanos = Nanos::from_millis(100);

/// The finding that something on the way lets a rate pass.
pub(super) const RATE_LIMIT: &str = "rate-limit";
/// A rate limit drops at least this share; less is no reason to search for one.
const EVEN_SHARE_MIN: f64 = 0.005;
/// Fewer losses have no pattern.
const EVEN_COUNT_MIN: u64 = 50;
/// If at least this share of the runs of losses, and of the distances between them, are the same, something counts packets.
const EVEN: f64 = 0.8;
/// The same for two neighboring lengths: a rate limit alternates between them, apart from the moments at which the sender was late.
const EVEN_NEIGHBORS: f64 = 0.9;
/// What holds packets back until its queue is full.
const SHAPER: &str = "a shaper or a slow link on the way";
/// Runs of more than this times the length of independent losses are bursts.
const BURSTY: f64 = 2.0;
/// A queue of less than this cannot be told from the noise of two clocks.
const QUEUE_MIN: Nanos = Nanos::from_millis(1);

/// Reports the part of a loss that no place counted, and its pattern.
pub(crate) struct UnexplainedLoss;

impl FindingRule for UnexplainedLoss {
    fn id(&self) -> &'static str {
        LOSS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            DEVICE_CORE_FULL,
            BLACK_HOLE,
            FRAGMENT_FILTER,
            TIME_EXCEEDED,
            LINK_DOWN,
            DAMAGED_FRAMES,
            BAD_IP_CHECKSUMS,
            NEIGHBOR_CHANGES,
            "link-full",
            "address-not-local",
            "duplicate-address",
            "other-mac",
            "martian-packets",
            NEIGHBOR_UNRESOLVED,
            PLANNED_EVENT,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        let lost = seen.test.conservation.as_ref();
        let n_lost = lost.and_then(|sum| u64::try_from(sum.n_unexplained).ok()).unwrap_or(0);
        // A machine counts the packets that wait for a neighbor once for all of its namespaces, so they are no place of the account.
        let n_waited =
            || seen.hosts().map(|host| seen.growth(host, host::NEIGHBOR_UNRESOLVED, None)).max().unwrap_or(0);
        // An event takes no more than its share of the time.
        let share = lost.and_then(|sum| ratio(n_lost, sum.n_received)).unwrap_or(0.0);
        match cause {
            PLANNED_EVENT => share > 2.0 * missing_share(seen),
            // A link that is full has a queue that overflows.
            "link-full" => !LossShape::of(seen, n_lost, share).is_that_of_limit(),
            NEIGHBOR_UNRESOLVED => 2 * n_waited() < n_lost,
            // They are no place of the account: a card may have dropped them before IP counts.
            BAD_IP_CHECKSUMS => {
                2 * seen.hosts().map(|host| seen.growth(host, host::IP_IN_CSUM_ERRORS, None)).sum::<u64>() < n_lost
            }
            // A link that is down loses all for a while, and no single ones; so do a loop, of which a trace of the route provokes the messages
            // too, and a wrong neighbor entry.
            LINK_DOWN | NEIGHBOR_CHANGES | TIME_EXCEEDED => is_no_outage(seen, n_lost, share),
            _ => false,
        }
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
        let host = seen.test.from.as_str();
        let shape = LossShape::of(seen, n, share);
        let filter = filter_of_datagrams(seen, n).filter(|_| shape.is_that_of_filter());
        let n = filter.as_ref().map_or(n, |filter| n.min(filter.n_dropped));
        let share = ratio(n, sum.n_sent).unwrap_or(0.0);
        let units = unit_name(seen.test.layer).unwrap_or("packets");
        let share_text =
            if share < 1.0 && percent(share) == percent(1.0) { "nearly all".to_owned() } else { percent(share) };
        let lost = match &filter {
            Some(filter) => format!("a packet filter on {} dropped {share_text} of the {units}", filter.host),
            None => format!(
                "{share_text} of the {units} were lost where no counter of these hosts shows it{}",
                refusals(seen, n)
            ),
        };
        let end = |side| seen.host_of(side).unwrap_or(host);
        let (sender, receiver) = seen.one_way().map_or((host, host), |(from, to)| (end(from), end(to)));
        let counted = [
            (sender, count::SENT, sum.n_sent),
            (receiver, count::RECEIVED, sum.n_received),
            (receiver, "unexplained", n),
        ];
        let counted = counted.map(|(at, name, n)| counter_evidence(at, name, n));
        let next = match &filter {
            Some(filter) => Some(filter.next()),
            None => next(seen).filter(|_| seen.test.layer == Layer::Udp),
        };
        let severity = if share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(
                shape.id(),
                severity,
                shape.short().to_owned(),
                shape.title(seen, (filter.as_ref().map(|filter| filter.host), &lost)),
            )
            .tests(tests.map(|test| test.name.clone()))
            .evidence(counted.into_iter().chain(filter.map(|filter| filter.evidence())))
            .explains(explained_ratio(n, Some(sum.n_sent - sum.n_received)))
            .next(next),
        ]
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        match finding.id.as_str() {
            RATE_LIMIT => lower_rate(seen),
            // A loss without a pattern may come with the rate or not.
            LOSS => lower_rate(seen).map(Change::into_clue),
            _ => None,
        }
    }
}

/// Reports the transactions of datagrams whose request or answer was lost. Each keeps its flow waiting for its timeout.
pub(crate) struct LostTransactions;

impl FindingRule for LostTransactions {
    fn id(&self) -> &'static str {
        LOSS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A place that counts what it drops tells more.
        &[
            "filter-drops",
            "ingress-filter-drops",
            "udp-receive-buffer",
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
            BACKLOG_OVERFLOW,
            "device-receive-drops",
            DEVICE_CORE_FULL,
            "device-send-drops",
            "qdisc-drops",
            "bad-checksums",
            "other-mac",
            "path-full",
            LINK_DOWN,
            NEIGHBOR_CHANGES,
            TIME_EXCEEDED,
            OTHER_PROGRAMS,
            NEIGHBOR_UNRESOLVED,
            PLANNED_EVENT,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // A packet filter drops what it drops however busy the cores are, and nobody waits for a core as long as until a timeout.
        let n = seen.total(Side::Initiator, count::TRANSACTIONS_LOST);
        let is_filtered = || filter_of_datagrams(seen, n).is_some();
        let is_long = || seen.test.options.span("timeout").is_some_and(|timeout| timeout >= LONGER_THAN_CORE_WAITS);
        cause == OTHER_PROGRAMS && (is_filtered() || (is_long() && 2 * dropped_for_want_of_cores(seen) < n))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let total = |counter| seen.total(Side::Initiator, counter);
        // If nothing was answered, another finding reports that.
        let loss = seen.transaction_loss().filter(|_| total(count::TRANSACTIONS) > 0);
        let Some(loss) = loss else { return Vec::new() };
        let n_sent = total(count::SENT);
        let share = ratio(loss.n, n_sent).unwrap_or(0.0);
        if share < HOLDS_BACK && !loss.holds_back() {
            return Vec::new();
        }
        let waited = match loss.waited {
            0.0 => String::new(),
            waited => format!("; the timeouts took {} of the time", percent(waited)),
        };
        let filter = filter_of_datagrams(seen, loss.n);
        let how = match &filter {
            Some(filter) => format!("a packet filter on {} dropped packets", filter.host),
            None => format!("they or their answers were lost{}", refusals(seen, loss.n)),
        };
        let title = format!(
            "{} of the requests had no answer: {how}, and each kept its flow waiting until it timed out{waited}",
            percent(share)
        );
        let evidence = [("sent requests", n_sent), ("without an answer", loss.n)];
        let evidence = evidence.map(|(name, n)| counter_evidence(&seen.test.from, name, n));
        let next = filter.as_ref().map(PacketFilter::next);
        let evidence = evidence.into_iter().chain(filter.map(|filter| filter.evidence()));
        vec![seen.finding(LOSS, Severity::HoldsBack, "loss", title).evidence(evidence).next(next)]
    }
}

/// Says that a device on the way, or the other end, refused some of so many that were lost, as a clause that follows the loss; empty if none did. A device
/// tells only some of those that it refuses (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4), and the kernel tells a socket only some of what it is told.
fn refusals(seen: &TestEvidence<'_>, n_lost: u64) -> String {
    // Fewer may be for another program.
    const MESSAGES_MIN: u64 = 3;
    let n_messages: u64 = seen.hosts().map(|host| seen.growth(host, host::ICMP_IN_UNREACHABLE, None)).sum();
    // A port that nobody listens on has a finding of its own, and of a neighbor that does not answer the host itself tells.
    let mut errors =
        seen.trials().iter().flat_map(|trial| trial.records.values()).flat_map(|record| record.errors.keys());
    let is_told = errors.any(|failure| failure.cause == Cause::Refused)
        || seen.hosts().any(|host| seen.growth(host, host::NEIGHBOR_UNRESOLVED, None) > 0);
    if is_told || !(MESSAGES_MIN..=n_lost).contains(&n_messages) {
        return String::new();
    }
    format!(", and a firewall or a router refused some of them ({} ICMP messages)", grouped(n_messages))
}

/// Returns the packets that were dropped where a core came too late: in a full socket, or in the backlog of a core.
fn dropped_for_want_of_cores(seen: &TestEvidence<'_>) -> u64 {
    let counters = [host::UDP_RCVBUF_ERRORS, host::SOFTNET_DROPPED];
    seen.hosts().flat_map(|host| counters.map(|counter| seen.growth(host, counter, None))).sum()
}

/// Returns true if so many losses, this share of what arrived, came one by one or from a full queue.
pub(super) fn is_no_outage(seen: &TestEvidence<'_>, n_lost: u64, share: f64) -> bool {
    matches!(
        LossShape::of(seen, n_lost, share),
        LossShape::Independent { .. } | LossShape::Even { .. } | LossShape::FullQueue { .. }
    )
}

/// The pattern of a loss, which tells its cause where no counter does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LossShape {
    /// At equal distances: something lets a rate pass and drops the rest. The delay is that of its queue, if it has one.
    Even { queue: Option<Nanos> },
    /// Each time while a queue was full, which delayed what it took by so much.
    FullQueue { delay: Nanos },
    /// Independent of each other, at most so many in a row.
    Independent { longest: u64 },
    /// In bursts, at most so many in a row.
    Bursts { longest: u64 },
    /// One long gap of so many in a row, and how long it lasted.
    Outage { longest: u64, span: Nanos },
    /// From this time of a round on, nothing arrived to its end.
    NothingMore { round: u32, since: Nanos },
    /// Nothing of so many of all flows arrived, which is most of the loss.
    WholeFlows { n_silent: u64, n_flows: u64 },
    /// All that was lost is beyond a rate that other tests of the same way met too, whatever they offered.
    SharedLimit,
    /// The test does not record it.
    Unknown,
}

impl LossShape {
    /// Finds the pattern of a loss of this share, of which no place counted `n`.
    fn of(seen: &TestEvidence<'_>, n: u64, share: f64) -> Self {
        if let Some((round, since)) = last_arrival(seen, n) {
            return Self::NothingMore { round, since };
        }
        if let Some((n_silent, n_flows)) = silent_flows(seen, share) {
            return Self::WholeFlows { n_silent, n_flows };
        }
        let longest = seen.test.summaries.iter().find(|summary| summary.metric.name == LOSS_BURST_MAX);
        let longest = longest.and_then(|summary| summary.trials.iter().copied().reduce(f64::max)).map(rounded);
        let bursts = merged(seen, distribution::LOSS_BURST);
        let Some(longest) = longest.or_else(|| bursts.max()).filter(|n| *n > 0) else {
            return Self::without_runs(seen, n, share);
        };
        // Runs are of all losses. The longest may be one of those that a place counted, such as a socket whose reader waited for a core:
        // the rest has no shape of its own then.
        let counted = seen.packets_lost().unwrap_or(n).saturating_sub(n);
        if longest > n || counted >= longest {
            return Self::Unknown;
        }
        // A limit cuts bursts short, which are long runs on a busy machine, but most of what it drops is in short ones.
        let span = time_of(seen, longest);
        if span >= OUTAGE && lost_in_outages(seen, &bursts, longest) >= n / 2 {
            return Self::Outage { longest, span };
        }
        // A sender that has to wait has a queue of its own before it, which does not drop and delays all datagrams.
        let waits = seen.offered().is_some_and(|offered| offered.share < OFFERED);
        if let Some(delay) = full_queue(seen).filter(|_| share >= EVEN_SHARE_MIN && !waits) {
            return Self::FullQueue { delay };
        }
        if share >= EVEN_SHARE_MIN && is_even(&bursts) && is_even(&merged(seen, distribution::LOSS_SPACING)) {
            return Self::Even { queue: queue_delay(&merged(seen, distribution::ONE_WAY_DELAY)) };
        }
        // Independent losses of a share p have runs of 1 / (1 − p) on average.
        let independent = 1.0 / (1.0 - share.min(0.9));
        match bursts.mean() {
            Some(mean) if mean > BURSTY * independent => Self::Bursts { longest },
            None if longest > 3 => Self::Bursts { longest },
            _ => Self::Independent { longest },
        }
    }

    /// Finds the pattern of a test that does not record which ones are lost, such as one of frames: those that arrive have waited in the queue,
    /// or other tests met the same limit.
    fn without_runs(seen: &TestEvidence<'_>, n: u64, share: f64) -> Self {
        if let Some((longest, span)) = longest_silence(seen, n) {
            return Self::Outage { longest, span };
        }
        let delay = all_alike(&merged(seen, distribution::LATENCY)).filter(|_| share >= EVEN_SHARE_MIN);
        match delay {
            Some(delay) => Self::FullQueue { delay },
            None if share_a_limit(seen) => Self::SharedLimit,
            None => Self::Unknown,
        }
    }

    /// Returns true if a packet filter drops like this: it has no queue, and is no limit of other tests.
    const fn is_that_of_filter(self) -> bool {
        !matches!(self, Self::Even { queue: Some(_) } | Self::FullQueue { .. } | Self::SharedLimit)
    }

    /// Returns true for what is lost above a rate.
    const fn is_that_of_limit(self) -> bool {
        matches!(self, Self::Even { .. } | Self::FullQueue { .. } | Self::SharedLimit)
    }

    const fn id(self) -> &'static str {
        match self {
            _ if self.is_that_of_limit() => RATE_LIMIT,
            Self::Outage { .. } | Self::NothingMore { .. } => "outage",
            _ => LOSS,
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Even { .. } | Self::FullQueue { .. } | Self::SharedLimit => "rate limit",
            Self::Outage { .. } | Self::NothingMore { .. } => "outage",
            _ => "lost",
        }
    }

    /// The cause, if the pattern names one, and the loss with the host that dropped it, if that is known.
    fn title(self, seen: &TestEvidence<'_>, (at, lost): (Option<&str>, &str)) -> String {
        let passes = || passes(seen);
        match self {
            Self::Even { queue: Some(delay) } => {
                format!("{SHAPER} {}, with {delay} in its queue: {lost}, at equal distances", passes())
            }
            Self::Even { queue: None } => {
                let limit =
                    at.map_or("a policer or a shaper on the way".to_owned(), |host| format!("a policer on {host}"));
                format!("{limit} {}: {lost}, at equal distances", passes())
            }
            Self::FullQueue { delay } => {
                format!("{SHAPER} {}, with {delay} in its full queue: {lost}", passes())
            }
            Self::SharedLimit => {
                format!("a policer or a shaper on the way {}, no matter how much is offered: {lost}", passes())
            }
            Self::Independent { longest } => {
                format!("{lost}, independently, never more than {} in a row", grouped(longest))
            }
            Self::Bursts { longest } => format!("{lost}, in bursts of up to {}", grouped(longest)),
            Self::Outage { longest, span } => {
                format!("{lost}; the longest gap is {} in a row, about {span} without any", grouped(longest))
            }
            Self::NothingMore { round, since } => {
                let when =
                    if since == Nanos::ZERO { "from the start".to_owned() } else { format!("after the first {since}") };
                format!("{lost}; nothing arrived {when} of round {round}")
            }
            Self::WholeFlows { n_silent, n_flows } => {
                let why = ": one of the parallel paths or links that carry the flows is dead";
                let why = if at.is_some() { "" } else { why };
                format!("{lost}; in a round, no datagram of {n_silent} of the {n_flows} flows arrived{why}")
            }
            Self::Unknown => lost.to_owned(),
        }
    }
}

/// Says which rate passes, to follow the name of what lets it.
fn passes(seen: &TestEvidence<'_>) -> String {
    let of_unit = |unit| seen.test.summaries.iter().find(|summary| summary.metric.unit == unit);
    let shown = |summary: &Summary| Some(summary.metric.show(summary.value?));
    // Networks have a rate for each class of traffic.
    let of_class = seen.test.options.text("dscp").filter(|class| class != "0");
    let of_class = of_class.map_or_else(String::new, |class| format!(" of DSCP {class}"));
    if let Some(rate) = of_unit(Unit::BitsPerSec).and_then(shown) {
        return format!("lets {rate}{of_class} pass");
    }
    let rate = main_rate(seen.test).and_then(shown);
    match (carried_bits(seen).and_then(BitsPerSec::new), rate) {
        (Some(bits), Some(rate)) => format!("lets {bits}{of_class} pass ({rate})"),
        (None, Some(rate)) => format!("lets {rate}{of_class} pass"),
        (_, None) => "lets a rate pass".to_owned(),
    }
}

/// Returns a distribution of all trials.
fn merged(seen: &TestEvidence<'_>, name: &str) -> Histogram {
    let mut all = Histogram::new();
    let records = seen.trials().iter().flat_map(|trial| trial.records.values());
    records.filter_map(|record| record.distributions.get(name)).for_each(|times| all.merge(times));
    all
}

/// Returns true if nearly all values are the same: within a quarter of the median, or two neighboring numbers.
///
/// Of geometric values, which independent losses have, two thirds at most are within a quarter. Two neighbors hold nearly all only of one
/// of the two lengths, runs or distances: if half of the packets are lost, three quarters of both, and at any other share less of one.
fn is_even(lengths: &Histogram) -> bool {
    let Some(median) = lengths.quantile(0.5).filter(|_| lengths.count() >= EVEN_COUNT_MIN) else { return false };
    let share = |low: u64, high: u64| lengths.share_within(approximate(low), approximate(high)).unwrap_or(0.0);
    let quarter = median / 4;
    share(median - quarter, median + quarter) >= EVEN
        || share(median, median + 1) >= EVEN_NEIGHBORS
        || share(median.saturating_sub(1), median) >= EVEN_NEIGHBORS
}

/// Returns the delay that a standing queue adds, if there is one.
fn queue_delay(delays: &Histogram) -> Option<Nanos> {
    let (least, usual) = (Nanos(delays.min()?), Nanos(delays.quantile(0.5)?));
    (usual > least + QUEUE_MIN && usual > least * 2).then(|| usual - least)
}

/// Returns the delay of a queue that overflowed: it was full at the losses, so that nearly all datagrams right before them waited alike.
///
/// However evenly the sender sends, which waits for a core on a busy machine. What else delays datagrams there, such as a device that
/// waits for a core, delays them by all kinds of times.
fn full_queue(seen: &TestEvidence<'_>) -> Option<Nanos> {
    all_alike(&merged(seen, distribution::QUEUED_BEFORE_LOSS))
}

/// Returns the median of times in a queue, if nearly all are within a quarter of it.
fn all_alike(queued: &Histogram) -> Option<Nanos> {
    let usual = queued.quantile(0.5).filter(|usual| *usual >= QUEUE_MIN.0 && queued.count() >= EVEN_COUNT_MIN)?;
    let quarter = approximate(usual) / 4.0;
    let alike = queued.share_within(approximate(usual) - quarter, approximate(usual) + quarter)?;
    (alike >= EVEN).then_some(Nanos(usual))
}

/// Returns the number of datagrams that were lost in outages: in runs that took so long to send.
fn lost_in_outages(seen: &TestEvidence<'_>, bursts: &Histogram, longest: u64) -> u64 {
    let is_outage = |n: u64| time_of(seen, n) >= OUTAGE;
    match bursts.count() {
        0 => longest,
        _ => bursts.buckets().filter(|(n, ..)| is_outage(*n)).map(|(n, _, count)| n.saturating_mul(count)).sum(),
    }
}

/// Returns the longest time in which nothing arrived before something did, and the packets sent in it, if they are most of a loss.
///
/// Known to an interval of the record at either end, which is a few tens of milliseconds: the time on both hosts begins with the trial.
fn longest_silence(seen: &TestEvidence<'_>, n_lost: u64) -> Option<(u64, Nanos)> {
    let (from, to) = seen.one_way()?;
    let mut longest = (0, Nanos::ZERO);
    for trial in seen.trials() {
        let Some(((_, sender), (_, receiver))) = record_of(trial, from).zip(record_of(trial, to)) else { continue };
        let mut silent_since = Nanos::ZERO;
        for (begin, end, n) in intervals(&receiver.timeline, count::RECEIVED) {
            if n > 0 {
                let span = begin.since(silent_since);
                let within = |(since, until, _): &(Nanos, Nanos, u64)| *since >= silent_since && *until <= begin;
                let sent: u64 = intervals(&sender.timeline, count::SENT).filter(within).map(|(.., n)| n).sum();
                longest = if span >= OUTAGE { longest.max((sent, span)) } else { longest };
                silent_since = end;
            }
        }
    }
    (longest.0 >= (n_lost / 2).max(OUTAGE_PACKETS_MIN)).then_some(longest)
}

/// Returns the first round in which nothing arrived from some time on, though it was sent for much longer, and that time; `None` if that is not most
/// of a loss.
///
/// As exact as [`longest_silence`]. A round of which nothing arrived is one too, if an earlier one had arrivals.
fn last_arrival(seen: &TestEvidence<'_>, n_lost: u64) -> Option<(u32, Nanos)> {
    let (from, to) = seen.one_way()?;
    let (mut first, mut n_sent_on) = (None, 0);
    for trial in seen.trials() {
        let Some(((_, sender), (_, receiver))) = record_of(trial, from).zip(record_of(trial, to)) else { continue };
        let arrived = intervals(&receiver.timeline, count::RECEIVED).filter(|(.., n)| *n > 0).map(|(_, end, _)| end);
        let since = arrived.last().unwrap_or(Nanos::ZERO);
        let sent_on = intervals(&sender.timeline, count::SENT).filter(|(begin, _, n)| *begin >= since && *n > 0);
        let (until, n) = sent_on.fold((since, 0), |(_, all), (_, end, n)| (end, all + n));
        // A receiver that ended before its sender got nothing after that.
        let watched = receiver.timeline.end_ns.last().copied().unwrap_or(Nanos::ZERO).min(until);
        if watched.since(since) >= OUTAGE && n >= OUTAGE_PACKETS_MIN {
            first = first.or(Some((trial.round + 1, since)));
            n_sent_on += n;
        } else if first.is_some() {
            // What passes again in a later round had stopped for another reason.
            return None;
        }
    }
    // If far more was sent than this loss has, a place counted the rest.
    let is_most = || ((n_lost / 2).max(OUTAGE_PACKETS_MIN)..=n_lost.saturating_mul(2)).contains(&n_sent_on);
    first.filter(|_| is_most())
}

/// Returns the most flows of a round of which nothing arrived, and all, if a loss of this share is about what they carried.
///
/// All flows send alike. Of the flows of several pairs of hosts only the sum is known.
fn silent_flows(seen: &TestEvidence<'_>, share: f64) -> Option<(u64, u64)> {
    // What else was lost, and how unevenly flows begin, changes the share by less.
    const ABOUT: std::ops::RangeInclusive<f64> = 0.8..=1.25;
    let n_flows = seen.test.options.count("flows").filter(|_| seen.test.links.is_empty())?;
    let records = seen.trials().iter().flat_map(|trial| trial.records.values());
    let silent: Vec<u64> = records.filter_map(|record| record.totals.get(count::FLOWS_SILENT)).copied().collect();
    let n_trials = u64::try_from(seen.trials().len()).ok()?;
    let of_all = ratio(silent.iter().sum(), n_flows.checked_mul(n_trials)?)?;
    let most = silent.into_iter().max()?;
    // A flow of a few datagrams may have none in the measured part, or lose them by chance.
    let n_sent = seen.one_way().map_or(0, |(from, _)| seen.total(from, count::SENT));
    let has_many = n_sent >= OUTAGE_PACKETS_MIN.checked_mul(n_flows)?.checked_mul(n_trials)?;
    (has_many && ABOUT.contains(&(of_all / share))).then_some((most, n_flows))
}

/// Returns the beginning and the end of each interval of a record, with the growth of a counter in it.
fn intervals(timeline: &Timeline, counter: &str) -> impl Iterator<Item = (Nanos, Nanos, u64)> {
    let growth = timeline.counters.get(counter).into_iter().flatten();
    let begins = std::iter::once(&Nanos::ZERO).chain(&timeline.end_ns);
    begins.zip(&timeline.end_ns).zip(growth).map(|((begin, end), n)| (*begin, *end, *n))
}

/// Returns how long this many datagrams take to send.
fn time_of(seen: &TestEvidence<'_>, n: u64) -> Nanos {
    let sent = seen.one_way().map_or(0, |(from, _)| seen.total(from, count::SENT));
    let records = seen.trials().iter().flat_map(|trial| trial.records.values());
    let lasted = records.map(|record| record.measured_ns.1.0).max().unwrap_or(0);
    let n_trials = approximate(u64::try_from(seen.trials().len()).unwrap_or(1));
    // Each flow counts its own in a row.
    let flows = seen.test.options.count("flows").unwrap_or(1).max(1);
    let each = n_trials * approximate(lasted) * approximate(flows) / approximate(sent.max(1));
    Nanos(rounded(each * approximate(n)))
}

/// Suggests a probe of the path from this host.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    let to = seen.test.to.as_deref().filter(|_| !seen.is_one_machine())?;
    let address = seen.run.hosts.get(to)?.address.as_deref()?;
    Some(
        NextStep::new(format!("fathom probe {address} --test route --allow {address}"))
            .on(&seen.test.from)
            .expected("show the devices on the way; look at their drop counters"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{
        Better, Derivation, Metric, Side,
        metric::{MetricName, UnitAndSense},
        names::host,
    };

    fn lossy(sent: u64, received: u64, in_a_row: Option<u64>) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(sent, received)]);
        if let Some(n) = in_a_row {
            builder.total("target", LOSS_BURST_MAX, n);
            let from = Derivation::Total { side: Side::Responder, counter: LOSS_BURST_MAX.into() };
            let metric = Metric::of(
                MetricName(LOSS_BURST_MAX, "longest loss burst"),
                UnitAndSense(Unit::Count, Better::Lower),
                "RFC 7680",
                from,
            );
            builder.context.metrics.get_mut("udp_stream").unwrap().push(metric);
        }
        builder
    }

    #[test]
    fn without_runs_of_losses_the_time_in_which_nothing_arrived_is_an_outage() {
        let found = |arrived: &[u64]| {
            let n = arrived.iter().sum();
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, n)]);
            let ends = |n: usize| (1..=10).map(|tenth| Nanos::from_millis(100 * tenth)).take(n).collect();
            let counters = [(count::RECEIVED.to_owned(), arrived.to_vec())].into();
            let sent = [(count::SENT.to_owned(), vec![100; 10])].into();
            let records = &mut builder.run.tests[0].trials[0].records;
            records.get_mut("client").unwrap().timeline = Timeline { end_ns: ends(10), counters: sent };
            records.get_mut("target").unwrap().timeline = Timeline { end_ns: ends(arrived.len()), counters };
            builder.analyzed().findings.into_iter().find(|found| [LOSS, "outage"].contains(&found.id.as_str())).unwrap()
        };
        let outage = found(&[0, 0, 0, 0, 100, 100, 100, 100, 100, 100]);
        assert_eq!(outage.id, "outage");
        assert!(outage.title.contains("about 400 ms without any"), "{}", outage.title);
        assert_eq!(found(&[60; 10]).id, LOSS);
        assert_eq!(found(&[100, 100, 0, 0, 0, 0, 0, 0, 0, 100]).id, "outage");
        let ended = found(&[100, 100, 100, 100, 100, 0, 0, 0, 0, 0]);
        assert!(ended.title.ends_with("nothing arrived after the first 500 ms of round 1"), "{}", ended.title);
        assert_eq!(found(&[100; 5]).id, LOSS, "it may have ended early");
    }

    #[test]
    fn messages_of_a_device_that_refuses_are_told_beside_the_loss() {
        let told = |n_messages: u64, error: Option<&str>| {
            let mut builder = lossy(10_000, 9_800, Some(2));
            builder.host_counter("client", (host::ICMP_IN_UNREACHABLE, ""), n_messages);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            if let Some(error) = error {
                record.errors.add(error, 9);
            }
            builder.finding(LOSS).is_some_and(|found| found.title.contains("refused some of them (9 ICMP messages)"))
        };
        assert!(told(9, None) && told(9, Some("sendmmsg: host unreachable")));
        assert!(!told(9, Some("sendmmsg: connection refused")), "nobody listens");
        assert!(!told(2, None) && !told(5_000, None), "those of others");
    }

    #[test]
    fn flows_of_which_nothing_arrived_are_told_if_they_are_most_of_a_loss() {
        let told = |n_silent: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 500), (1_000, 500)]);
            builder.run.tests[0].options.set("flows", "16");
            builder.total("target", count::FLOWS_SILENT, n_silent);
            builder.finding(LOSS).unwrap().title
        };
        assert!(told(8).contains("; in a round, no datagram of 8 of the 16 flows arrived: "), "{}", told(8));
        assert!(!told(2).contains("flows arrived"), "{}", told(2));
    }

    #[test]
    fn loss_that_no_counter_saw_is_a_finding_with_its_share_and_shape() {
        let found = lossy(10_000, 5_900, Some(29)).finding("loss").unwrap();
        assert_eq!(
            found.title,
            "41 % of the datagrams were lost where no counter of these hosts shows it, in bursts of up to 29"
        );
        assert_eq!((found.severity, found.explains), (Severity::HoldsBack, Some(1.0)));
        let single = lossy(10_000, 9_800, Some(2)).finding("loss").unwrap();
        assert!(single.title.ends_with(", independently, never more than 2 in a row"), "{}", single.title);
        let gap = lossy(10_000, 8_000, Some(1_739)).finding("outage").unwrap();
        assert!(gap.title.ends_with("1,739 in a row, about 209 ms without any"), "{}", gap.title);
    }

    /// Adds the distances between losses: so many of each length.
    fn spaced(builder: &mut RunBuilder, name: &str, lengths: &[(u64, u64)]) {
        let mut times = Histogram::new();
        for (length, n) in lengths {
            times.record_n(*length, *n);
        }
        let record = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
        record.distributions.insert(name.to_owned(), times);
    }

    #[test]
    fn losses_at_equal_distances_are_those_of_a_rate_limit() {
        let mut policed = lossy(100_000, 50_000, Some(1));
        spaced(&mut policed, distribution::LOSS_BURST, &[(1, 49_000)]);
        spaced(&mut policed, distribution::LOSS_SPACING, &[(1, 48_000), (2, 1_000), (9_000, 1)]);
        let finding = policed.finding(RATE_LIMIT).unwrap();
        assert!(
            finding.title.starts_with("a policer or a shaper on the way lets")
                && finding.title.ends_with("at equal distances"),
            "{}",
            finding.title
        );
        spaced(&mut policed, distribution::ONE_WAY_DELAY, &[(100_000, 10), (50_000_000, 90_000)]);
        let finding = policed.finding(RATE_LIMIT).unwrap();
        assert!(
            finding.title.starts_with("a shaper or a slow link on the way lets")
                && finding.title.contains("49.9 ms in its queue"),
            "{}",
            finding.title
        );
        spaced(&mut policed, distribution::ONE_WAY_DELAY, &[(100_000, 90_010)]);
        policed.host_counter("target", (host::IP_IN_RECEIVES, ""), 100_000);
        policed.host_counter("target", (host::IP_IN_DELIVERS, ""), 50_000);
        let title = policed.finding(RATE_LIMIT).unwrap().title;
        assert!(title.starts_with("a policer on target lets"), "{title}");
        let mut alternating = lossy(100_000, 40_000, Some(2));
        spaced(&mut alternating, distribution::LOSS_BURST, &[(1, 20_000), (2, 20_000)]);
        spaced(&mut alternating, distribution::LOSS_SPACING, &[(1, 40_000)]);
        assert_eq!(alternating.finding(RATE_LIMIT).unwrap().short, "rate limit");
        let mut random = lossy(100_000, 98_000, Some(3));
        let geometric: Vec<(u64, u64)> =
            (1..400).map(|n| (n, rounded(2_000.0 * 0.02 * 0.98_f64.powi(i32::try_from(n).unwrap())))).collect();
        spaced(&mut random, distribution::LOSS_SPACING, &geometric);
        spaced(&mut random, distribution::LOSS_BURST, &[(1, 1_960), (2, 40)]);
        assert_eq!(random.finding("loss").unwrap().short, "lost");
    }

    #[test]
    fn a_queue_that_is_full_at_each_loss_is_a_rate_limit_although_the_losses_are_at_no_equal_distances() {
        let limited = |queued: &[(u64, u64)]| {
            let mut builder = lossy(10_000, 6_000, Some(60));
            spaced(&mut builder, distribution::LOSS_BURST, &[(1, 900), (10, 190), (20, 60)]);
            spaced(&mut builder, distribution::LOSS_SPACING, &[(2, 600), (17, 500), (60, 50)]);
            spaced(&mut builder, distribution::QUEUED_BEFORE_LOSS, queued);
            builder.analyzed().findings.remove(0)
        };
        let ms = |millis: u64| Nanos::from_millis(millis).0;
        let found = limited(&[(ms(23), 700), (ms(26), 350), (ms(40), 100)]);
        assert_eq!(found.id, RATE_LIMIT);
        assert!(found.title.contains(", with 23.0 ms in its full queue: "), "{}", found.title);
        let busy: Vec<(u64, u64)> = (1..30).map(|delay| (ms(delay), 40)).collect();
        assert_eq!(limited(&busy).id, LOSS, "whoever forwards them waits for a core");
        assert_eq!(limited(&[(ms(1) / 2, 1_000)]).id, LOSS, "hardly a queue");
    }

    #[test]
    fn frames_that_all_waited_alike_came_through_a_full_queue() {
        let of_frames = |delays: &[(u64, u64)]| {
            let mut builder = lossy(10_000, 500, None);
            builder.run.tests[0].layer = Layer::Frames;
            spaced(&mut builder, distribution::LATENCY, delays);
            builder.finding(RATE_LIMIT).map(|finding| finding.title)
        };
        let title = of_frames(&[(22_800_000, 480), (2_000_000, 20)]).unwrap();
        assert!(
            title.starts_with("a shaper or a slow link on the way lets") && title.contains("22.8 ms in its full queue"),
            "{title}"
        );
        assert_eq!(of_frames(&[(30_000, 500)]), None, "no queue");
    }

    #[test]
    fn the_queue_of_a_sender_that_has_to_wait_drops_nothing() {
        let id = |intended: u64| {
            let mut builder = lossy(10_000, 9_500, Some(6));
            spaced(&mut builder, distribution::LOSS_BURST, &[(1, 450), (2, 25)]);
            spaced(&mut builder, distribution::QUEUED_BEFORE_LOSS, &[(Nanos::from_millis(28).0, 475)]);
            for record in builder.run.tests[0].trials[0].records.values_mut() {
                record.totals.insert(count::INTENDED.to_owned(), intended);
            }
            let run = builder.analyzed();
            let of_loss =
                run.findings.iter().map(|finding| finding.id.clone()).find(|id| [LOSS, RATE_LIMIT].contains(&&**id));
            of_loss.unwrap()
        };
        assert_eq!((id(10_000).as_str(), id(15_000).as_str()), (RATE_LIMIT, LOSS));
    }

    #[test]
    fn a_loss_beside_more_that_a_socket_counted_has_no_shape_of_its_own() {
        let shaped = |counted| {
            let mut builder = lossy(100_000, 90_000, Some(160));
            spaced(&mut builder, distribution::LOSS_BURST, &[(1, 200), (160, 50)]);
            builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), counted);
            builder.finding(LOSS).unwrap().title.contains("in bursts of up to 160")
        };
        assert!(shaped(0) && !shaped(9_700));
    }

    #[test]
    fn an_outage_has_most_of_the_loss_and_none_of_what_was_counted_elsewhere() {
        let found = |sent, received, bursts: &[(u64, u64)]| {
            let mut builder = lossy(sent, received, Some(1_100));
            spaced(&mut builder, distribution::LOSS_BURST, bursts);
            builder
        };
        assert!(found(10_000, 8_500, &[(1, 300), (1_100, 1)]).finding("outage").is_some());
        let cut = found(10_000, 5_000, &[(2, 1_000), (10, 190), (1_100, 1)]);
        assert_eq!(cut.finding("outage"), None, "a fifth of the loss");
        let mut starved = found(10_000, 8_500, &[(1, 300), (1_100, 1)]);
        starved.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 1_150);
        assert_eq!(starved.finding("outage"), None, "the socket dropped it");
    }

    #[test]
    fn what_ip_received_and_delivered_to_nobody_is_the_work_of_a_packet_filter() {
        let filtered = |delivered: u64, counted: u64| {
            let mut builder = lossy(100_000, 90_000, Some(2));
            builder.host_counter("target", (host::IP_IN_RECEIVES, ""), 100_020);
            builder.host_counter("target", (host::IP_IN_DELIVERS, ""), delivered);
            builder.host_counter("target", (host::NFT_DROPPED, "ip t i 2"), counted);
            builder.finding(LOSS)
        };
        let found = filtered(90_010, 0).unwrap();
        let words = "a packet filter on target dropped 10 % of the datagrams, independently";
        assert!(found.title.starts_with(words), "{}", found.title);
        let next = found.next.unwrap();
        assert_eq!((next.on.as_deref(), next.command.as_str()), (Some("target"), "nft list ruleset"));
        let elsewhere = filtered(100_000, 0).unwrap();
        assert!(elsewhere.title.contains("no counter of these hosts"), "{}", elsewhere.title);
        let half = filtered(94_000, 0).unwrap();
        assert!(half.title.starts_with("a packet filter on target dropped 6.0 %"), "{}", half.title);
        assert_eq!(filtered(90_010, 10_000), None, "a rule counts them");
        let mut of_sender = lossy(100_000, 90_000, Some(2));
        of_sender.host_counter("client", (host::IP_IN_RECEIVES, ""), 10_000);
        of_sender.host_counter("client", (host::IP_IN_DELIVERS, ""), 0);
        let title = of_sender.finding(LOSS).unwrap().title;
        assert!(title.contains("no counter of these hosts"), "the sender receives none of them: {title}");
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

    #[test]
    fn few_lost_transactions_matter_where_their_timeouts_take_the_time() {
        let finding = |rate: Option<&str>| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(100_000, 1);
            builder.run.tests[0].layer = Layer::Udp;
            builder.run.tests[0].options.set("flows", "2");
            builder.run.tests[0].options.set("timeout", "200ms");
            if let Some(rate) = rate {
                builder.run.tests[0].options.set("rate", rate);
            }
            builder.total("client", count::SENT, 100_005);
            builder.total("client", count::TRANSACTIONS_LOST, 5);
            builder.finding("loss")
        };
        let title = finding(None).unwrap().title;
        assert!(
            title.starts_with("0.0050 % of the requests")
                && title.ends_with("it timed out; the timeouts took 50 % of the time"),
            "{title}"
        );
        assert_eq!(finding(Some("1000")), None, "a schedule does not wait");
    }

    #[test]
    fn lost_transactions_are_told_unless_a_place_that_drops_counts_them() {
        let severity = |n_lost: u64, n_dropped: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(900, 1);
            builder.run.tests[0].layer = Layer::Udp;
            builder.total("client", count::SENT, 1_000);
            builder.total("client", count::TRANSACTIONS_LOST, n_lost);
            builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 1_000);
            builder.host_counter("target", (host::NFT_DROPPED, "ip t i 2"), n_dropped);
            builder.finding("loss").map(|finding| finding.severity)
        };
        assert_eq!([severity(0, 0), severity(100, 0)], [None, Some(Severity::HoldsBack)]);
        assert_eq!(severity(100, 100), Some(Severity::Remark), "a rule on target drops them");
    }

    #[test]
    fn a_run_of_one_flow_of_many_takes_as_much_longer() {
        let id = |flows: &str| {
            let mut builder = lossy(64_000, 63_900, Some(100));
            builder.run.tests[0].options.set("flows", flows);
            builder.analyzed().findings.remove(0).id
        };
        assert_eq!((id("1").as_str(), id("64").as_str()), (LOSS, "outage"));
    }
}
