//! Packets were dropped at a place with a counter.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::{count, host},
    units::{Bytes, grouped, percent, ratio},
};

use super::{FindingRule, link_down::LINK_DOWN, rule::DEVICE_CORE_FULL};
use crate::{
    change::{Change, larger_datagram_buffer, lower_rate},
    closed_load::TimerWaits,
    evidence::{TestEvidence, counter_evidence, explained_ratio},
    gap,
    reception::SeenReception,
    resent::{SEGMENTS_OF_A_DROP, n_resent},
};

/// Drops below one packet in a hundred thousand are not reported, because devices also count packets unrelated to the test.
const REPORT_MIN: f64 = 1e-5;
/// Drops of at least one packet in a thousand hold a test back.
const SEVERITY_MIN: f64 = 1e-3;
/// A place that explains less than this part of a loss is not its cause.
const CAUSE: f64 = 0.1;
/// Fewer dropped packets explain nothing.
pub(super) const PACKETS_MIN: u64 = 10;

/// A place that drops so much of what comes holds TCP back, whatever is sent again.
const MOST_OF_A_WAY: f64 = 0.2;

/// Returns true if the connections of a test may have lost so many packets at one place: as far as segments were sent again, or waited for, or errors
/// tell. A host also drops unrelated packets. Other tests count what they lost.
pub(super) fn may_be_of_connections(seen: &TestEvidence<'_>, n: u64, share: Option<f64>) -> bool {
    let is_counted = || seen.hosts_of_tcp().all(|host| seen.has_counter(host, host::TCP_RETRANS_SEGMENTS));
    if !matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp) || !is_counted() {
        return true;
    }
    let mut records = seen.trials().iter().flat_map(|trial| trial.records.values());
    let mut has_failed = || records.any(|record| !record.errors.is_empty());
    let resent = n_resent(seen);
    // A packet may hold many segments, and what was sent again may be dropped again.
    let fits = (resent / SEGMENTS_OF_A_DROP..=resent.saturating_mul(2)).contains(&n);
    // What a server sends again on a host that is not read, or not the end of its connections, leaves gaps here.
    let has_gaps = || SeenReception::of(seen).is_some_and(|found| found.has_gaps());
    fits && resent > 0
        || share.is_some_and(|share| share >= MOST_OF_A_WAY)
        || TimerWaits::of(seen).is_some()
        || has_failed()
        || has_gaps()
}

/// Drops of one host, to be turned into a finding.
pub(super) struct DropReport<'a> {
    pub(super) id: &'static str,
    pub(super) short: &'static str,
    pub(super) host: &'a str,
    /// The event, printed before the numbers.
    pub(super) what: String,
    pub(super) evidence: Vec<fathom_model::Evidence>,
    pub(super) n: u64,
    /// The number of packets that reached the place, including the dropped ones, if known.
    pub(super) of: u64,
    pub(super) next: Option<NextStep>,
}

impl DropReport<'_> {
    pub(super) fn into_finding(self, seen: &TestEvidence<'_>) -> Option<Finding> {
        self.weighed(seen, None)
    }

    /// The same for a place that drops hardly any packets of others: a few of a test's transactions may take much of its time.
    pub(super) fn into_finding_by_time(self, seen: &TestEvidence<'_>) -> Option<Finding> {
        let is_most = |lost: u64, most: u64| (lost / 2..=lost.saturating_mul(most)).contains(&self.n);
        let of_datagrams = seen.transaction_loss().filter(|lost| lost.holds_back() && is_most(lost.n, 2));
        // Lost ACKs cost no time, nor what later segments ask for again.
        let of_timers = || TimerWaits::of(seen).filter(|waits| is_most(waits.n, 10));
        let waited = of_datagrams.map(|lost| lost.waited).or_else(|| of_timers().map(|waits| waits.share));
        self.weighed(seen, waited)
    }

    /// Weighs the drops by their number, or by the share of its time that a test waited for what was dropped.
    fn weighed(self, seen: &TestEvidence<'_>, waited: Option<f64>) -> Option<Finding> {
        // Some drivers omit packets from one counter that another includes; a share of such counters would be meaningless.
        let share_known = ratio(self.n, self.of).filter(|share| *share <= 1.0);
        let share = share_known.unwrap_or(1.0);
        // A test that accounts for every packet reports every drop.
        let accounted = seen.packets_lost().is_some_and(|lost| lost > 0);
        if self.n == 0 || (share < REPORT_MIN && !accounted && waited.is_none()) {
            return None;
        }
        let by_time = || waited.and_then(|share| gap::explained_by_least_time(seen, share));
        let explains = explained_ratio(self.n, seen.packets_lost()).or_else(by_time);
        // A series of probes is short beside the packets of others: only about as many drops as it lost, two at least, are its own.
        let is_of_others =
            seen.probes_lost().is_some_and(|lost| lost < 2 || !(lost / 2..=lost.saturating_mul(2)).contains(&self.n));
        let is_cause = !is_of_others
            && (share >= SEVERITY_MIN || waited.is_some())
            && explains.is_none_or(|explains| explains >= CAUSE);
        let of = share_known.map_or(String::new(), |share| format!(" of {} ({})", grouped(self.of), percent(share)));
        let severity = if is_cause { Severity::HoldsBack } else { Severity::Remark };
        Some(
            seen.finding(self.id, severity, self.short, format!("{}: {} dropped{of}", self.what, grouped(self.n)))
                .evidence(self.evidence)
                .explains(explains)
                .next(self.next.filter(|_| is_cause).map(|next| on_its_host(next, self.host))),
        )
    }
}

/// A test is repeated where it was started; all else is done where packets were dropped.
fn on_its_host(next: NextStep, host: &str) -> NextStep {
    let repeats = next.command.starts_with("fathom ") && !next.command.starts_with("fathom serve");
    if repeats { next } else { next.on(host) }
}

/// Returns twice the current value of a `sysctl`, but at least `least`.
pub(super) fn doubled_sysctl(seen: &TestEvidence<'_>, host: &str, name: &str, least: u64) -> u64 {
    sysctl(seen, host, name).map_or(least, |now| now.saturating_mul(2).max(least))
}

/// Returns a setting of a host that is a number, where it was read.
fn sysctl(seen: &TestEvidence<'_>, host: &str, name: &str) -> Option<u64> {
    seen.environment(host)?.get("sysctl", name)?.parse().ok()
}

/// Returns the number of packets that a host received in the test, as counted by its interface: bonds, bridges and VLANs count those of the
/// devices below them once more.
pub(super) fn packets_received(seen: &TestEvidence<'_>, host: &str) -> u64 {
    seen.growth(host, host::DEV_RX_FRAMES, Some(seen.interface(host)))
}

/// Returns the size of the receive ring of a card and the largest that the device has.
pub(super) fn ring(seen: &TestEvidence<'_>, (host, card): (&str, &str)) -> Option<(u32, u32)> {
    let fact = |name| seen.environment(host)?.get(card, name)?.parse().ok();
    Some((fact("ring_rx")?, fact("ring_rx_max")?))
}

/// A longer ring holds longer bursts. Where it is the longest already, the frames have to be taken faster.
pub(super) fn longer_ring(seen: &TestEvidence<'_>, (host, card): (&str, &str)) -> NextStep {
    match ring(seen, (host, card)) {
        Some((now, max)) if now >= max => NextStep::new(format!("ethtool -S {card}"))
            .expected("show which queue is full; spread its flows over more queues and cores"),
        Some((_, max)) => {
            NextStep::new(format!("ethtool -G {card} rx {max}")).expected("hold longer bursts in the ring")
        }
        None => NextStep::new(format!("ethtool -S {card}"))
            .expected("show which queue is full; lengthen its ring or spread its flows"),
    }
}

/// Returns false for the sender of datagrams or frames: it cannot lose what it sends where packets arrive.
pub(super) fn may_lose_at_arrival(seen: &TestEvidence<'_>, host: &str) -> bool {
    let is_of_packets = seen.packets_lost().is_some() && seen.test.conservation.is_some();
    let receives = |side| seen.host_of(side).is_none_or(|receiver| receiver == host);
    !is_of_packets || !seen.test.links.is_empty() || seen.one_way().is_none_or(|(_, to)| receives(to))
}

/// A UDP socket gets this buffer unless the test or the host says otherwise (`SK_RMEM_MAX` of `include/net/sock.h`, Linux 6.18).
const UDP_BUFFER_USUAL: Bytes = Bytes(212_992);

/// The buffer of the receiving socket was full.
pub(crate) struct UdpReceiveBuffer;

impl FindingRule for UdpReceiveBuffer {
    fn id(&self) -> &'static str {
        "udp-receive-buffer"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // A link that comes back is followed by all that waited for a neighbor, at once.
        &["cpu-quota", "other-programs", LINK_DOWN]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // A link that comes back fills the buffer once, which is little of what was lost, or could not be sent, while it was down.
        let takes_most = || {
            let dropped = full_buffer(seen, "").and_then(|found| found.explains).filter(|share| *share >= gap::HALF);
            let records = seen.trials().iter().flat_map(|trial| trial.records.values());
            let n_failed: u64 = records.flat_map(|record| record.errors.values()).sum();
            dropped.is_some() && seen.packets_lost().is_some_and(|lost| lost > n_failed)
        };
        // A buffer that the test made small is the cause even if the reader lacks time.
        small_buffer(seen).is_some() || (cause == LINK_DOWN && takes_most())
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let starved = seen.shares_full_cores();
        let why = match small_buffer(seen) {
            Some(size) => format!(", which holds {size} (--buffer)"),
            None if starved => ", as its reader shares full cores with the sender".to_owned(),
            None => String::new(),
        };
        // No buffer is large enough for a reader without CPU time.
        let helps = !starved || small_buffer(seen).is_some();
        let found = full_buffer(seen, &why);
        found.map(|found| Finding { next: found.next.filter(|_| helps), ..found }).into_iter().collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        // At a lower rate, a reader without CPU time has some.
        let is_starved = seen.shares_full_cores() && small_buffer(seen).is_none();
        if is_starved { lower_rate(seen) } else { larger_datagram_buffer(seen) }
    }
}

/// Returns the size of the receive buffer that a test asks for, if it is smaller than usual.
fn small_buffer(seen: &TestEvidence<'_>) -> Option<Bytes> {
    seen.test.options.size("buffer").filter(|size| (1..UDP_BUFFER_USUAL.0).contains(&size.0))
}

/// Returns the drops of the receiving socket as a finding.
fn full_buffer(seen: &TestEvidence<'_>, why: &str) -> Option<Finding> {
    let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return None };
    let receiver = seen.host_of(to)?;
    let of_host = seen.growth(receiver, host::UDP_RCVBUF_ERRORS, None);
    // A socket also counts damaged datagrams as its drops, and what its filter drops. The host counts neither here.
    let damaged = seen.growth(receiver, host::UDP_IN_CSUM_ERRORS, None);
    let was_full = of_host > 0 || !seen.has_counter(receiver, host::UDP_RCVBUF_ERRORS);
    let own = if was_full { seen.total(to, count::SOCKET_DROPPED).saturating_sub(damaged) } else { 0 };
    // Far more than the test lost were dropped at sockets of other programs. A host counts before and after the measured part, too.
    let is_of_others = own == 0 && seen.packets_lost().is_some_and(|lost| of_host > lost.saturating_mul(2));
    let of_host = if is_of_others { 0 } else { of_host };
    let evidence = [(host::UDP_RCVBUF_ERRORS, of_host), (count::SOCKET_DROPPED, own)].into_iter();
    let dropped = DropReport {
        id: UdpReceiveBuffer.id(),
        short: "socket full",
        host: receiver,
        what: format!("the buffer of the receiving socket on {receiver} was full{why}"),
        evidence: evidence.filter(|(_, n)| *n > 0).map(|(name, n)| counter_evidence(receiver, name, n)).collect(),
        n: of_host.max(own),
        of: seen.total(from, count::SENT),
        next: Some(larger_buffer(seen, receiver)),
    };
    dropped.into_finding_by_time(seen)
}

/// Suggests a larger buffer for the receiving socket: by the option of the command, or by the default of the host.
///
/// A socket that does not request a buffer size gets `rmem_default`, no matter how large `rmem_max` is.
fn larger_buffer(seen: &TestEvidence<'_>, receiver: &str) -> NextStep {
    const LEAST: Bytes = Bytes(4 << 20);
    let given = seen.test.options.size("buffer").unwrap_or(Bytes(0));
    let room = Bytes(given.0.saturating_mul(4).max(LEAST.0));
    let expected = format!("hold bursts of {room}, unless the reader is always too slow");
    if let Some(command) = seen.repeat_with_option("buffer", &room.exact()) {
        return NextStep::new(command).expected(expected);
    }
    let room = doubled_sysctl(seen, receiver, "net.core.rmem_default", LEAST.0);
    NextStep::new(format!("sysctl -w net.core.rmem_default={room}")).expected(format!("hold bursts of {}", Bytes(room)))
}

/// Nothing of the test arrived, because the filter of its port takes no packets from where they come.
pub(crate) struct PortFilter;

impl FindingRule for PortFilter {
    fn id(&self) -> &'static str {
        "port-filter"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let Some(receiver) = seen.host_of(to) else { return Vec::new() };
        // If some arrived, others that were dropped may be those of strangers.
        if seen.total(to, count::RECEIVED) > 0 || !seen.has_counter(receiver, host::UDP_RCVBUF_ERRORS) {
            return Vec::new();
        }
        let (sent, strange) = (seen.total(from, count::SENT), seen.total(to, count::PORT_DROPPED));
        let dropped = DropReport {
            id: self.id(),
            short: "port filter",
            host: receiver,
            what: format!("the port of the test on {receiver} drops packets from the sender's address"),
            evidence: vec![counter_evidence(receiver, count::PORT_DROPPED, strange)],
            n: strange.min(sent),
            of: sent,
            next: Some(
                NextStep::new("fathom serve --allow ADDRESS")
                    .on(receiver)
                    .expected("let packets in from that address too"),
            ),
        };
        dropped.into_finding(seen).into_iter().collect()
    }
}

pub(crate) struct BadChecksum;

impl FindingRule for BadChecksum {
    fn id(&self) -> &'static str {
        "bad-checksums"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let Some(receiver) = seen.host_of(to) else { return Vec::new() };
        let n = seen.growth(receiver, host::UDP_IN_CSUM_ERRORS, None);
        let dropped = DropReport {
            id: self.id(),
            short: "bad checksum",
            host: receiver,
            what: format!("{} datagrams reached {receiver} damaged, with a wrong checksum", grouped(n)),
            evidence: vec![counter_evidence(receiver, host::UDP_IN_CSUM_ERRORS, n)],
            n,
            of: seen.total(from, count::SENT),
            next: Some(
                NextStep::new(format!("ip -s -s link show {}", seen.interface(receiver)))
                    .expected("show whether frames arrive damaged (crc, frame); else a device on the way changes them"),
            ),
        };
        dropped.into_finding(seen).into_iter().collect()
    }
}

/// The id of the finding about packets that a core had no room for.
pub(super) const BACKLOG_OVERFLOW: &str = "backlog-overflow";

/// Lets more packets wait for a core.
pub(super) fn longer_backlog(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    let most = doubled_sysctl(seen, host, "net.core.netdev_max_backlog", 10_000);
    NextStep::new(format!("sysctl -w net.core.netdev_max_backlog={most}"))
        .expected("let longer bursts wait instead of being dropped; in a container, change it on the host machine")
}

/// Returns true if fewer packets may wait for a core than usual.
fn has_short_backlog(seen: &TestEvidence<'_>, host: &str) -> bool {
    // The default of the kernel (`net/core/hotdata.c`, Linux 6.18), which is not recorded.
    const USUAL: u64 = 1_000;
    sysctl(seen, host, "net.core.netdev_max_backlog").is_some_and(|packets| packets < USUAL)
}

/// The queue of packets waiting for a core was full.
pub(crate) struct BacklogDrops;

impl FindingRule for BacklogDrops {
    fn id(&self) -> &'static str {
        BACKLOG_OVERFLOW
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["other-programs", "receive-budget", "one-core-receives"]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        // A very short queue overflows without other programs, too.
        let drops = |host: &&str| seen.growth(host, host::SOFTNET_DROPPED, None) > 0;
        cause == "other-programs" && seen.machines().filter(drops).all(|host| has_short_backlog(seen, host))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let on_host = |host: &str| {
            let grown = seen.growth_by_instance(host, host::SOFTNET_DROPPED);
            let (core, _) = grown.first()?;
            let n: u64 = grown.iter().map(|(_, n)| n).sum();
            let of = if seen.is_one_machine() { "this machine" } else { host };
            let n_all = n + seen.growth(host, host::SOFTNET_PROCESSED, None);
            let dropped = DropReport {
                id: self.id(),
                short: "backlog",
                host,
                what: format!("the backlog of {core} of {of} was full"),
                evidence: grown
                    .iter()
                    .map(|(core, n)| counter_evidence(host, format!("softnet_dropped {core}"), *n))
                    .collect(),
                n,
                of: n_all,
                next: Some(longer_backlog(seen, host)),
            };
            let found = dropped.into_finding_by_time(seen)?;
            // A stream hardly feels that some of its ACKs are lost.
            let is_cause = may_be_of_connections(seen, n, ratio(n, n_all));
            Some(if is_cause { found } else { Finding { severity: Severity::Remark, next: None, ..found } })
        };
        // The backlog belongs to a core, so all hosts on one machine show the same drops.
        seen.machines().filter_map(on_host).collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        lower_rate(seen)
    }
}

/// A device dropped incoming packets.
pub(crate) struct DeviceReceiveDrops;

impl FindingRule for DeviceReceiveDrops {
    fn id(&self) -> &'static str {
        "device-receive-drops"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["link-down", "mtu-mismatch", "receive-budget", "one-core-receives"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Frames without a receiver are dropped on purpose, for example by a test of the receive path. Where the test lost nothing, they are frames
        // of protocols that the host does not speak, such as LLDP, which are counted here too (`__netif_receive_skb_core`, net/core/dev.c).
        if seen.test.layer == Layer::Frames && seen.test.to.is_none() || seen.lost_nothing() {
            return Vec::new();
        }
        let on_host = |host| {
            let interface = seen.interface(host);
            let dropped = seen.growth(host, host::DEV_RX_DROPPED, Some(interface));
            let cards = seen.cards(host);
            let of_cards = |counter| cards.iter().map(|card| seen.growth(host, counter, Some(card))).sum();
            let (fifo, missed): (u64, u64) = (of_cards(host::DEV_RX_FIFO), of_cards(host::DEV_RX_MISSED));
            let of = [(host::DEV_RX_DROPPED, interface, dropped), (host::DEV_RX_FIFO, &cards.join(" and "), fifo)];
            let counters = of.into_iter().filter(|(.., n)| *n > 0);
            let evidence = counters.map(|(name, at, n)| counter_evidence(host, format!("{name} {at}"), n)).collect();
            // The device also counts the drops of the core's backlog behind it, and those of its ring, which have a rule of their own.
            let elsewhere = seen.growth(host, host::SOFTNET_DROPPED, None) + missed;
            let n = dropped.saturating_sub(elsewhere).max(fifo);
            // A few frames of protocols that the host does not speak come to every interface.
            let is_of_few = n < PACKETS_MIN && seen.packets_lost().is_none();
            if is_of_few || !may_be_of_connections(seen, n, ratio(n, packets_received(seen, host))) {
                return None;
            }
            let dropped = DropReport {
                id: self.id(),
                short: "device drops",
                host,
                what: format!("{interface} on {host} dropped what arrived"),
                evidence,
                n,
                // Packets that did not fit in a ring, or in a memory device, do not count as received.
                of: packets_received(seen, host) + if seen.is_memory(host) { n } else { fifo },
                // A memory device has no ring with a configurable size.
                next: (!seen.is_memory(host)).then(|| {
                    let card = seen.card(host);
                    if fifo > 0 {
                        return longer_ring(seen, (host, card));
                    }
                    NextStep::new(format!("ethtool -S {card}"))
                        .expected("show why its driver dropped them; frames of protocols that the host does not speak are counted here too")
                }),
            };
            dropped.into_finding(seen)
        };
        let hosts = seen.hosts().filter(|host| !seen.is_of_device(host) && may_lose_at_arrival(seen, host));
        hosts.filter_map(on_host).collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        lower_rate(seen)
    }
}

/// A device or its queue dropped outgoing packets.
pub(crate) struct DeviceSendDrops;

impl FindingRule for DeviceSendDrops {
    fn id(&self) -> &'static str {
        "device-send-drops"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "link-down", DEVICE_CORE_FULL, "other-programs"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let on_host = |host| {
            let interface = seen.interface(host);
            let counted_all = seen.growth(host, host::DEV_TX_DROPPED, Some(interface));
            // A memory device also counts the drops of its other end and of the backlog behind that.
            let behind = |other: &str| {
                let device = seen.growth(other, host::DEV_RX_DROPPED, Some(seen.interface(other)));
                device.max(seen.growth(other, host::SOFTNET_DROPPED, None))
            };
            let others = seen.hosts().filter(|other| *other != host);
            let behind = if seen.is_memory(host) { others.map(behind).max().unwrap_or(0) } else { 0 };
            let n = counted_all.saturating_sub(behind);
            let dropped = DropReport {
                id: self.id(),
                short: "device drops",
                host,
                what: if seen.is_memory(host) {
                    format!(
                        "{interface} on {host} dropped outgoing packets, because its other end did not take them in time"
                    )
                } else {
                    format!("{interface} on {host} dropped outgoing packets")
                },
                evidence: vec![counter_evidence(host, format!("{} {interface}", host::DEV_TX_DROPPED), n)],
                n,
                of: n + seen.growth(host, host::DEV_TX_FRAMES, Some(interface)),
                // A memory device has no queue of its own; longer frames than its other end takes are counted there.
                next: Some(if seen.is_memory(host) {
                    NextStep::new(format!("tc qdisc replace dev {interface} root pfifo limit 1000"))
                        .expected("make senders wait instead of dropping their packets (veth, Linux 6.17 and later)")
                } else {
                    NextStep::new(format!("ethtool -S {interface}")).expected("show why its driver dropped them")
                }),
            };
            dropped.into_finding(seen)
        };
        seen.hosts().filter(|host| !seen.is_of_device(host)).filter_map(on_host).collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        lower_rate(seen)
    }
}

/// The queueing discipline of a device dropped outgoing packets.
pub(crate) struct QdiscDrops;

impl FindingRule for QdiscDrops {
    fn id(&self) -> &'static str {
        "qdisc-drops"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let of_device = |(host, device)| {
            let n = seen.growth(host, host::QDISC_DROPPED, Some(device));
            let is_of_received = seen.redirects(host).contains(&device);
            let direction = if is_of_received { "received" } else { "outgoing" };
            let dropped = DropReport {
                id: self.id(),
                short: "qdisc drops",
                host,
                what: format!("the queueing discipline of {device} on {host} dropped {direction} packets"),
                evidence: vec![counter_evidence(host, format!("{} {device}", host::QDISC_DROPPED), n)],
                n,
                of: n + seen.growth(host, host::DEV_TX_FRAMES, Some(device)),
                next: Some(
                    NextStep::new(format!("tc -s qdisc show dev {device}"))
                        .expected("show which discipline drops, and its limit"),
                ),
            };
            dropped.into_finding(seen)
        };
        let devices = |host| seen.devices(host).into_iter().chain(seen.redirects(host));
        seen.hosts().flat_map(|host| devices(host).map(move |device| (host, device))).filter_map(of_device).collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        lower_rate(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnalysisContext, run_builder::RunBuilder};

    #[test]
    fn a_receiver_that_is_too_slow_is_named_with_its_counter() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(100_000, 90_000), (100_000, 90_000)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 9_000);
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", "net.core.rmem_default", "20000000");
        let finding = builder.finding("udp-receive-buffer").unwrap();
        assert_eq!(finding.evidence[0].counter, "udp_rcvbuf_errors");
        assert_eq!((finding.evidence[0].host.as_str(), finding.evidence[0].value.as_str()), ("target", "18,000"));
        assert_eq!(finding.explains, Some(0.9));
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.core.rmem_default=40000000");
        assert!(finding.title.ends_with("18,000 dropped of 200,000 (9.0 %)"), "{}", finding.title);
    }

    #[test]
    fn a_filter_that_drops_everything_is_named_and_no_full_buffer() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(11_618, 0)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 0);
        builder.total("target", count::PORT_DROPPED, 11_620);
        // A record of before has the drops of the filter as those of the socket.
        builder.total("target", count::SOCKET_DROPPED, 11_618);
        assert_eq!(builder.finding("udp-receive-buffer"), None);
        let finding = builder.finding("port-filter").unwrap();
        assert!(finding.title.ends_with("11,618 dropped of 11,618 (100 %)"), "{}", finding.title);
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, Some(1.0)));
        let mut some = RunBuilder::new();
        some.udp_stream(&[(1000, 900)]);
        some.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 0);
        some.total("target", count::PORT_DROPPED, 100);
        assert_eq!(some.finding("port-filter"), None, "strangers may have sent them");
    }

    #[test]
    fn a_buffer_that_was_asked_for_too_small_is_asked_for_larger() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(100_000, 90_000)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 9_000);
        builder.run.command = "fathom udp 198.18.0.2 --buffer 4096 --rate 10M".to_owned();
        builder.run.tests[0].options.set("buffer", "4096");
        // Programs that take the cores do not make the buffer smaller than it was asked for.
        builder.steal("target", fathom_model::units::Nanos::from_millis(600));
        let finding = builder.finding("udp-receive-buffer").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert!(finding.title.contains("was full, which holds 4 KiB (--buffer)"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "fathom udp 198.18.0.2 --rate 10M --buffer 4MiB");
    }

    #[test]
    fn a_link_that_comes_back_explains_a_full_buffer_unless_that_is_most_of_the_loss() {
        let severity = |full: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(100_000, 90_000)]);
            builder.host_counter("target", (host::DEV_CARRIER_CHANGES, "eth0"), 2);
            builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), full);
            builder.finding("udp-receive-buffer").unwrap().severity
        };
        assert_eq!(severity(1_500), Severity::Remark);
        assert_eq!(severity(8_000), Severity::HoldsBack);
    }

    #[test]
    fn one_loss_between_the_ends_of_a_veth_is_told_once_and_without_a_ring_to_set() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.driver("veth");
        builder.host_counter("client", (host::DEV_TX_FRAMES, "eth0"), 100_000);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 596);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 100_000);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 596);
        assert_eq!(builder.finding("device-send-drops"), None);
        assert_eq!(builder.finding("device-receive-drops").unwrap().next, None);
    }

    #[test]
    fn a_backlog_that_overflowed_is_named_with_its_core() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), 0);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 100);
        let finding = builder.finding("backlog-overflow").unwrap();
        assert_eq!(finding.evidence[0].counter, "softnet_dropped cpu1");
        assert_eq!((finding.explains, finding.severity), (Some(1.0), Severity::HoldsBack));
    }

    #[test]
    fn a_backlog_shorter_than_usual_is_no_effect_of_other_programs() {
        let stands = |length: Option<&str>| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 900)]);
            builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 100);
            if let Some(length) = length {
                let target = builder.run.hosts.get_mut("target").unwrap();
                target.environment.note("sysctl", "net.core.netdev_max_backlog", length);
            }
            let context = AnalysisContext::default();
            BacklogDrops
                .stands_beside("other-programs", &TestEvidence::new(&builder.run, &builder.run.tests[0], &context))
        };
        assert_eq!([stands(Some("100")), stands(Some("2000")), stands(None)], [true, false, false]);
    }

    #[test]
    fn a_device_that_drops_one_in_a_million_is_not_told_of() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 2_000_000);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 2);
        assert_eq!(builder.finding("device-receive-drops"), None);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 20_000);
        let finding = builder.finding("device-receive-drops").unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, None));
        assert_eq!(finding.next.unwrap().command, "ethtool -S eth0", "the size of its ring is not known");
    }

    #[test]
    fn a_queueing_discipline_that_drops_is_named_with_what_shows_it() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.host_counter("client", (host::DEV_TX_FRAMES, "eth0"), 900);
        builder.host_counter("client", (host::QDISC_DROPPED, "eth0"), 100);
        let finding = builder.finding("qdisc-drops").unwrap();
        assert_eq!((finding.explains, finding.severity), (Some(1.0), Severity::HoldsBack));
        assert!(finding.title.ends_with("100 dropped of 1,000 (10 %)"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "tc -s qdisc show dev eth0");
        assert_eq!(builder.finding("device-send-drops"), None);
    }

    #[test]
    fn what_a_veth_cannot_hand_on_is_a_share_of_what_it_was_offered() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.driver("veth");
        builder.host_counter("client", (host::DEV_TX_FRAMES, "eth0"), 10);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 990);
        let finding = builder.finding("device-send-drops").unwrap();
        let told = "because its other end did not take them in time: 990 dropped of 1,000 (99 %)";
        assert!(finding.title.ends_with(told), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "tc qdisc replace dev eth0 root pfifo limit 1000");
    }

    #[test]
    fn frames_that_a_test_drops_on_purpose_are_no_drops_of_a_device() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 500)]);
        builder.host_counter("client", (host::DEV_RX_DROPPED, "eth0"), 1000);
        builder.run.tests[0].layer = Layer::Frames;
        assert_eq!(builder.finding("device-receive-drops"), None, "the sender receives none of them");
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 1000);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 1000);
        assert!(builder.finding("device-receive-drops").is_some());
        builder.run.tests[0].to = None;
        assert_eq!(builder.finding("device-receive-drops"), None);
    }

    #[test]
    fn a_share_of_more_than_everything_is_not_told() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 990);
        let title = builder.finding("device-receive-drops").unwrap().title;
        assert!(title.ends_with("990 dropped"), "{title}");
    }

    #[test]
    fn another_interface_of_the_host_is_not_the_path() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth7"), 20_000);
        assert_eq!(builder.finding("device-send-drops"), None);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 20_000);
        assert_eq!(builder.finding("device-send-drops").unwrap().next.unwrap().on.as_deref(), Some("client"));
    }

    #[test]
    fn what_strangers_lost_is_no_cause_of_a_test_over_tcp() {
        let severity = |resent: u64, dropped: u64, n_received: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_250_000]);
            for (host, n) in [("client", resent), ("target", 0)] {
                builder.host_counter(host, (host::TCP_OUT_SEGMENTS, ""), 8_600);
                builder.host_counter(host, (host::TCP_RETRANS_SEGMENTS, ""), n);
                builder.host_counter(host, (host::TCP_SYN_RETRANS, ""), 0);
            }
            builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), n_received);
            builder.host_counter("target", (host::NFT_DROPPED, "ip filter input 7"), dropped);
            builder.finding("filter-drops").map(|finding| finding.severity)
        };
        assert_eq!(severity(0, 30, 8_600), None, "nothing was lost");
        assert_eq!(severity(1, 30, 8_600), Some(Severity::Remark), "scans of a public address");
        assert_eq!(severity(5_000, 30, 8_600), Some(Severity::Remark), "most was lost elsewhere");
        assert_eq!(severity(40, 30, 8_600), Some(Severity::HoldsBack));
        assert_eq!(severity(1, 3_000, 8_600), Some(Severity::HoldsBack), "a third of all that came");
    }

    #[test]
    fn datagrams_of_other_sockets_are_not_those_of_the_test() {
        let found = |n_errors: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(10_000, 9_990)]);
            builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), n_errors);
            builder.finding("udp-receive-buffer").is_some()
        };
        assert_eq!([found(10), found(1_500)], [true, false]);
    }

    #[test]
    fn acks_that_a_backlog_drops_cost_a_stream_nothing() {
        let severity = |resent: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_000]);
            for (host, n) in [("client", resent), ("target", 0)] {
                builder.host_counter(host, (host::TCP_RETRANS_SEGMENTS, ""), n);
            }
            builder.host_counter("client", (host::SOFTNET_PROCESSED, "cpu1"), 90_000);
            builder.host_counter("client", (host::SOFTNET_DROPPED, "cpu1"), 5_000);
            builder.finding("backlog-overflow").unwrap().severity
        };
        assert_eq!([severity(0), severity(4_000)], [Severity::Remark, Severity::HoldsBack]);
    }
}
