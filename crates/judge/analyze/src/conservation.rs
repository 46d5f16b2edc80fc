//! Where everything that was sent went: received, dropped at a counted place, or unexplained.
//!
//! It knows the counters by name, and takes for the sender whichever side counted what it sent.

use std::collections::BTreeMap;

use fathom_model::{
    Conservation, Layer, Side, Trial,
    names::{count, host},
    run::{Host, TestRun},
    summary::Drops,
};

use crate::{
    path::is_memory,
    window::{is_complete, record_of},
};

/// The side that sends and the side that receives, where everything goes one way.
pub(crate) fn one_way(test: &TestRun, sent: &str, received: &str) -> Option<(Side, Side)> {
    let counted = |side, counter: &str| {
        test.trials
            .iter()
            .any(|trial| record_of(trial, side).is_some_and(|(_, record)| record.totals.get(counter) > Some(&0)))
    };
    let ways = [(Side::Initiator, Side::Responder), (Side::Responder, Side::Initiator)];
    // A side that also receives what it counts, or answers, is not the end of one way.
    ways.into_iter().find(|(from, to)| {
        counted(*from, sent) && !counted(*to, sent) && !counted(*from, received) && !counted(*from, count::TRANSACTIONS)
    })
}

/// What a host's counter grew by in all trials, over all its instances or those named.
pub(crate) fn host_growth(trials: &[&Trial], host: &str, counter: &str, of: Option<&str>) -> u64 {
    let records = trials.iter().filter_map(|trial| trial.hosts.get(host));
    let series = records.flat_map(|record| record.named(counter));
    series.filter(|series| of.is_none_or(|of| series.of == of)).map(fathom_model::record::Series::growth).sum()
}

fn total(trials: &[&Trial], side: Side, counter: &str) -> Option<u64> {
    trials
        .iter()
        .filter_map(|trial| record_of(trial, side)?.1.totals.get(counter).copied())
        .reduce(|sum, one| sum + one)
}

/// A place that may drop: its name, its counter, and how many it dropped that no deeper place counts.
type DropPlace = (&'static str, &'static str, u64);

/// Where the sender's device stands among its places.
const AT_DEVICE: usize = 3;

/// What a host that sends dropped, each packet at the deepest place that counts it.
///
/// What a device drops at once comes back as an error, which IP and the socket count again (`ip_send_skb`, `udp_send_skb`
/// of Linux 6.18), and a device that is memory also counts what the `backlog` behind it drops (`veth_xmit`). A queueing
/// discipline that is full tells it upwards too, one that drops on purpose (netem) does not. What was `refused` was never
/// taken for sent.
fn sender_drops(grown: impl Fn(&str) -> u64, backlog: u64, refused: u64) -> [DropPlace; 4] {
    let (device, qdisc) = (grown(host::DEV_TX_DROPPED), grown(host::QDISC_DROPPED));
    let below_ip = device.saturating_add(qdisc).max(grown(host::IP_OUT_DISCARDS));
    let socket = grown(host::UDP_SNDBUF_ERRORS).saturating_sub(below_ip);
    let mut places = [
        ("sender's socket buffer", host::UDP_SNDBUF_ERRORS, socket),
        ("sender's ip output", host::IP_OUT_DISCARDS, below_ip - device.saturating_add(qdisc)),
        ("sender's qdisc", host::QDISC_DROPPED, qdisc),
        ("sender's device", host::DEV_TX_DROPPED, device.saturating_sub(backlog)),
    ];
    let mut refused = refused;
    for (_, _, n_dropped) in &mut places {
        let forgiven = refused.min(*n_dropped);
        (*n_dropped, refused) = (*n_dropped - forgiven, refused - forgiven);
    }
    places
}

/// The ring of a veth, where nothing but the other end stands behind it.
const VETH_RING: &str = "ring between the veth's ends";

/// What a host that receives dropped before the socket.
///
/// A device also counts what its `backlog` drops (`enqueue_to_backlog`), and what the `ring` of a veth had no room for, which its
/// other end counts too (`veth_get_stats64` of Linux 6.18).
fn receiver_drops(grown: impl Fn(&str) -> u64, (backlog, ring): (u64, u64)) -> [DropPlace; 3] {
    let device = grown(host::DEV_RX_DROPPED).saturating_sub(backlog).saturating_sub(ring);
    [
        (BEHIND_COUNTER[0], host::DEV_RX_DROPPED, device),
        (BEHIND_COUNTER[1], host::SOFTNET_DROPPED, backlog),
        (BEHIND_COUNTER[2], host::IP_IN_DISCARDS, grown(host::IP_IN_DISCARDS)),
    ]
}

/// Where frames may be dropped that a counter in front of the stack let pass.
const BEHIND_COUNTER: [&str; 3] = ["receiver's device", "receiver's backlog", "receiver's ip input"];

/// Where a device between the two drops, with the counter that says so: what stands first in [`Drops::place`].
pub(crate) mod device {
    /// The ring of the device: it did not take its frames as fast as they came.
    pub(crate) const RING: &str = "device's receive ring";
    /// A program that runs before the network stack: a policer.
    pub(crate) const PROGRAM: &str = "device's XDP program";
    /// A rule of its packet filter.
    pub(crate) const RULE: &str = "device's filter rule";
    /// IP: no route, a time to live that ran out, no memory.
    pub(crate) const FORWARDING: &str = "device's ip forwarding";
    /// The queue in front of the wire to the receiver.
    pub(crate) const QUEUE: &str = "device's qdisc";
    /// The wire to the receiver, which did not take them.
    pub(crate) const OUTPUT: &str = "device's output";
}

/// What a device between the two dropped; `ring` is what the sender saw refused, where that is memory of the device.
///
/// What the device's own interfaces count as dropped on receiving contains `ring` (`veth_get_stats64` of Linux 6.18), and what
/// they count on sending contains what the `backlog` behind them drops.
fn device_drops(grown: impl Fn(&str) -> u64, ring: u64, backlog: u64) -> [DropPlace; 10] {
    let ip = |counter| (device::FORWARDING, counter, grown(counter));
    [
        (device::RING, host::DEV_RX_DROPPED, grown(host::DEV_RX_DROPPED).max(ring)),
        (device::PROGRAM, host::DEV_XDP_DROPPED, grown(host::DEV_XDP_DROPPED)),
        (device::RULE, host::NFT_DROPPED, grown(host::NFT_DROPPED)),
        ip(host::IP_IN_HEADER_ERRORS),
        ip(host::IP_IN_ADDRESS_ERRORS),
        ip(host::IP_IN_NO_ROUTES),
        ip(host::IP_IN_DISCARDS),
        ip(host::IP_OUT_DISCARDS),
        (device::QUEUE, host::QDISC_DROPPED, grown(host::QDISC_DROPPED)),
        (device::OUTPUT, host::DEV_TX_DROPPED, grown(host::DEV_TX_DROPPED).saturating_sub(backlog)),
    ]
}

/// One test of those that are summed up: its trials, and who sends to whom in them.
struct DirectionTrials<'a> {
    trials: Vec<&'a Trial>,
    from: (Side, &'a str),
    to: (Side, &'a str),
}

impl<'a> DirectionTrials<'a> {
    fn of(test: &'a TestRun, trials: Vec<&'a Trial>) -> Option<Self> {
        let (from, to) = one_way(test, count::SENT, count::RECEIVED)?;
        let host_of = |side| trials.iter().find_map(|trial| record_of(trial, side)).map(|(host, _)| host);
        let (sender, receiver) = (host_of(from)?, host_of(to)?);
        Some(Self { from: (from, sender), to: (to, receiver), trials })
    }
}

/// The trials of a test to compute values from: of the rounds that are complete in all tests that are made together, or of all rounds when
/// none is.
fn complete_trials<'a>(test: &'a TestRun, together: &[&TestRun]) -> Vec<&'a Trial> {
    let is_whole = |trial: &&Trial| {
        let of_round = |test: &&TestRun| test.trials.iter().any(|one| one.round == trial.round && is_complete(one));
        is_complete(trial) && together.iter().all(of_round)
    };
    let whole: Vec<&Trial> = test.trials.iter().filter(is_whole).collect();
    if whole.is_empty() { test.trials.iter().collect() } else { whole }
}

/// What all ways together counted of something; nothing where none of them did.
fn sum(ways: &[DirectionTrials<'_>], of: impl Fn(&DirectionTrials<'_>) -> Option<u64>) -> Option<u64> {
    ways.iter().filter_map(of).reduce(|sum, one| sum + one)
}

/// The places between two hosts, each with the host that counts there.
type HostDropPlaces = Vec<(String, DropPlace)>;

/// What a layer sends that can be counted one by one.
pub(crate) const fn unit_name(layer: Layer) -> Option<&'static str> {
    match layer {
        Layer::Udp => Some("datagrams"),
        Layer::Frames => Some("frames"),
        Layer::App | Layer::Http | Layer::Tcp | Layer::Path => None,
    }
}

/// Sums up tests of datagrams or frames that are made together, of which a device between the ends cannot tell one from another.
///
/// Nothing for others, or when one end did not count.
pub(crate) fn conservation(
    tests: &[&TestRun],
    hosts: &BTreeMap<String, Host>,
    via: Option<&str>,
) -> Option<Conservation> {
    let layer = tests.first()?.layer;
    let what = unit_name(layer)?;
    let ways =
        tests.iter().map(|test| DirectionTrials::of(test, complete_trials(test, tests))).collect::<Option<Vec<_>>>()?;
    let counted =
        |end: fn(&DirectionTrials<'_>) -> Side, counter| sum(&ways, |way| total(&way.trials, end(way), counter));
    let n_sent = counted(|way| way.from.0, count::SENT)?;
    let n_received = counted(|way| way.to.0, count::RECEIVED)?;
    let places = drop_places(&ways, hosts, via);
    let is_sampled = |host: &str, counter: &str| ways.iter().any(|way| was_sampled(&way.trials, host, counter));
    let is_counted =
        |(hosts, (_, counter, _)): &(String, DropPlace)| hosts.split(AND).any(|host| is_sampled(host, counter));
    let drops = places.into_iter().filter(is_counted).map(|(host, (place, counter, n_dropped))| Drops {
        place: place.to_owned(),
        counter: format!("{host} {counter}"),
        n_dropped,
    });
    let rings = ways.iter().flat_map(|way| ring_drops(&way.trials, way.from, way.to));
    let rings = rings.filter(|drop| via.is_none() || drop.place != VETH_RING);
    let sockets = ways.iter().flat_map(|way| socket_drops(layer, &way.trials, way.to));
    let mut drops: Vec<Drops> = rings.chain(drops).chain(sockets).collect();
    let passed_on = counted(|way| way.to.0, count::PASSED_ON).unwrap_or(0);
    let n_twice = unexplained(n_sent, n_received, &drops).saturating_neg();
    discount_duplicates(&mut drops, passed_on.min(u64::try_from(n_twice).unwrap_or(0)));
    Some(Conservation {
        what: if ways.len() > 1 { format!("{what} both ways") } else { what.to_owned() },
        n_intended: counted(|way| way.from.0, count::INTENDED),
        n_sent,
        n_received,
        n_unexplained: unexplained(n_sent, n_received, &drops),
        drops,
    })
}

/// What stands between the names of hosts that are counted as one.
const AND: &str = " and ";

/// All places that hosts count drops at: those of the senders, of the device between, and of the receivers.
fn drop_places(ways: &[DirectionTrials<'_>], hosts: &BTreeMap<String, Host>, via: Option<&str>) -> HostDropPlaces {
    let (mut senders, mut receivers): (Vec<&str>, Vec<&str>) = ways.iter().map(|way| (way.from.1, way.to.1)).unzip();
    // A host that plays both ends counts once.
    senders.dedup();
    receivers.dedup();
    // The hosts of tests that are made together are the same, and each test has the counters of all of them.
    let trials = ways.first().map(|way| way.trials.as_slice()).unwrap_or_default();
    let grown = |of: &[&str], counter: &str| -> u64 {
        let of_each = of.iter().map(|host| growth_on_path(trials, (host, hosts.get(*host)), counter));
        // The backlogs are those of the machine, which hosts that are joined by memory share.
        let is_shared = counter == host::SOFTNET_DROPPED && of.iter().all(|host| is_memory(hosts, host));
        if is_shared { of_each.max().unwrap_or(0) } else { of_each.sum() }
    };
    let total_of_senders = |counter| sum(ways, |way| total(&way.trials, way.from.0, counter)).unwrap_or(0);
    let backlog = grown(&receivers, host::SOFTNET_DROPPED);
    let (ring, refused) = (total_of_senders(count::VETH_RING_DROPPED), total_of_senders(count::SEND_REFUSED));
    let is_of_memory = senders.iter().all(|host| is_memory(hosts, host));
    let behind_senders = if is_of_memory { backlog.saturating_add(ring) } else { 0 };
    let mut sending = sender_drops(|counter| grown(&senders, counter), behind_senders, refused);
    let (between, in_front) = match via {
        Some(via) => {
            // What an interface that is memory could not hand over found no room in the ring of the device.
            let at_device = if is_of_memory { std::mem::take(&mut sending[AT_DEVICE].2) } else { 0 };
            let places = device_drops(|counter| grown(&[via], counter), at_device.saturating_add(ring), backlog);
            let output = places.last().map_or(0, |place| place.2);
            (places.map(|place| (via.to_owned(), place)).to_vec(), if is_memory(hosts, via) { output } else { 0 })
        }
        None => (Vec::new(), ring),
    };
    let receiving = receiver_drops(|counter| grown(&receivers, counter), (backlog, in_front));
    let sending = sending.map(|place| (senders.join(AND), place));
    let receiving = receiving.map(|place| (receivers.join(AND), place));
    sending.into_iter().chain(between).chain(receiving).collect()
}

/// What a host's counter grew by: one of an interface on those that are on the path, any other as a whole.
fn growth_on_path(trials: &[&Trial], (name, host): (&str, Option<&Host>), counter: &str) -> u64 {
    let interfaces: Vec<&String> =
        host.map_or_else(Vec::new, |host| host.interface.iter().chain(&host.further_interfaces).collect());
    if interfaces.is_empty() || !host::OF_INTERFACES.contains(&counter) {
        return host_growth(trials, name, counter, None);
    }
    interfaces.into_iter().map(|interface| host_growth(trials, name, counter, Some(interface))).sum()
}

fn was_sampled(trials: &[&Trial], host: &str, counter: &str) -> bool {
    trials.iter().any(|trial| trial.hosts.get(host).is_some_and(|record| record.named(counter).next().is_some()))
}

/// Drops for want of room in rings that the trial's own records count: between the ends of a veth, and of AF_XDP sockets.
fn ring_drops<'a>(
    trials: &'a [&Trial],
    from: (Side, &'a str),
    to: (Side, &'a str),
) -> impl Iterator<Item = Drops> + use<'a> {
    let places = [
        (from, VETH_RING, count::VETH_RING_DROPPED),
        (to, "receiver's AF_XDP ring", count::RING_FULL),
        (to, "receiver's AF_XDP memory", count::FILL_EMPTY),
    ];
    places.into_iter().filter_map(|((side, host), place, counter)| {
        let n_dropped = total(trials, side, counter).filter(|n| *n > 0)?;
        Some(Drops { place: place.to_owned(), counter: format!("{host} {counter}"), n_dropped })
    })
}

/// What the receiving socket dropped: damaged datagrams, and those for which it had no room.
///
/// A socket counts both as its own drops (`__skb_checksum_complete` in `udp_recvmsg` of Linux 6.18), and the host's counter of UDP
/// buffer errors includes the socket's own, so the larger of the two counts, once.
fn socket_drops(layer: Layer, trials: &[&Trial], (to, receiver): (Side, &str)) -> Vec<Drops> {
    let of_host = |counter: &str| {
        let is_known = layer == Layer::Udp && was_sampled(trials, receiver, counter);
        is_known.then(|| host_growth(trials, receiver, counter, None))
    };
    let damaged = of_host(host::UDP_IN_CSUM_ERRORS);
    let own = total(trials, to, count::SOCKET_DROPPED).map(|own| own.saturating_sub(damaged.unwrap_or(0)));
    let full = of_host(host::UDP_RCVBUF_ERRORS);
    let counter = if full > own { host::UDP_RCVBUF_ERRORS } else { count::SOCKET_DROPPED };
    let places = [
        ("receiver's checksum test", host::UDP_IN_CSUM_ERRORS, damaged),
        ("receiver's socket buffer", counter, own.max(full)),
    ];
    let drops = |(place, counter, n): (&str, &str, Option<u64>)| {
        Some(Drops { place: place.to_owned(), counter: format!("{receiver} {counter}"), n_dropped: n? })
    };
    places.into_iter().filter_map(drops).collect()
}

/// Takes away what the receiver's stack dropped of frames that were counted before: they had arrived.
///
/// How many of its drops those were is known from the balance only: that many are explained twice.
fn discount_duplicates(drops: &mut [Drops], mut n_twice: u64) {
    for drop in drops.iter_mut().rev().filter(|drop| BEHIND_COUNTER.contains(&drop.place.as_str())) {
        let n = n_twice.min(drop.n_dropped);
        (drop.n_dropped, n_twice) = (drop.n_dropped - n, n_twice - n);
    }
}

/// What no counter explains; negative when more was counted than was sent.
fn unexplained(n_sent: u64, n_received: u64, drops: &[Drops]) -> i64 {
    let dropped: i128 = drops.iter().map(|drop| i128::from(drop.n_dropped)).sum();
    let rest = i128::from(n_sent) - i128::from(n_received) - dropped;
    i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn everything_sent_is_received_dropped_at_a_place_or_unexplained() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900), (1000, 950)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 60);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), 5);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        assert_eq!((sum.n_sent, sum.n_received, sum.n_unexplained), (2000, 1850, 150 - 2 * 65));
        let places: Vec<(&str, u64)> = sum.drops.iter().map(|drop| (drop.place.as_str(), drop.n_dropped)).collect();
        assert_eq!(places, [("receiver's backlog", 10), ("receiver's socket buffer", 120)]);
    }

    #[test]
    fn what_was_counted_and_then_dropped_by_the_receivers_stack_had_arrived() {
        for (n_received, n_passed_on, n_dropped) in [(1000, 1000, 0), (900, 900, 100), (900, 0, 1000)] {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, n_received)]);
            builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 1000);
            builder.total("target", count::PASSED_ON, n_passed_on);
            let run = builder.analyzed();
            let sum = run.tests[0].conservation.as_ref().unwrap();
            assert_eq!(sum.drops.iter().map(|drop| drop.n_dropped).sum::<u64>(), n_dropped, "{sum:#?}");
            assert_eq!(sum.n_unexplained, 1000 - i64::try_from(n_received + n_dropped).unwrap());
        }
    }

    #[test]
    fn a_drop_that_socket_and_host_both_saw_counts_once() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 100);
        builder.total("target", count::SOCKET_DROPPED, 100);
        let run = builder.analyzed();
        assert_eq!(run.tests[0].conservation.as_ref().unwrap().n_unexplained, 0);
    }

    #[test]
    fn damaged_datagrams_are_not_taken_for_a_full_buffer() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.host_counter("target", (host::UDP_IN_CSUM_ERRORS, ""), 91);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 9);
        builder.total("target", count::SOCKET_DROPPED, 100);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        assert_eq!(dropped(sum), [("receiver's checksum test", 91), ("receiver's socket buffer", 9)]);
        assert_eq!(sum.n_unexplained, 0);
        let told = |id: &str| run.findings.iter().find(|finding| finding.id == id).map(|found| found.title.as_str());
        assert!(
            told("bad-checksums").unwrap().contains("91 datagrams reached target damaged"),
            "{:?}",
            told("bad-checksums")
        );
        assert!(told("udp-receive-buffer").unwrap().contains("9 dropped"), "{:?}", told("udp-receive-buffer"));
    }

    #[test]
    fn a_drop_behind_a_veth_that_five_counters_saw_counts_once() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        builder.driver("veth");
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), 100);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 100);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("client", (host::IP_OUT_DISCARDS, ""), 100);
        builder.host_counter("client", (host::UDP_SNDBUF_ERRORS, ""), 100);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        let dropped: Vec<&str> =
            sum.drops.iter().filter(|drop| drop.n_dropped > 0).map(|drop| drop.place.as_str()).collect();
        assert_eq!((dropped, sum.n_unexplained), (vec!["receiver's backlog"], 0));
        let told: Vec<&str> = run.findings.iter().map(|finding| finding.id.as_str()).collect();
        assert_eq!(told, ["backlog-overflow", "no-line-rate"]);
    }

    #[test]
    fn a_drop_between_the_ends_of_a_veth_that_three_counters_saw_counts_once() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 880)]);
        builder.driver("veth");
        builder.total("client", count::VETH_RING_DROPPED, 100);
        builder.total("target", count::FILL_EMPTY, 20);
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 100);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        assert_eq!(dropped(sum), [("ring between the veth's ends", 100), ("receiver's AF_XDP memory", 20)]);
        assert_eq!(sum.n_unexplained, 0);
    }

    #[test]
    fn what_a_queueing_discipline_dropped_is_told_there_whether_the_socket_heard_of_it_or_not() {
        for (n_heard, n_of_ip) in [(0, 0), (100, 0), (130, 30)] {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 900 - n_of_ip)]);
            builder.host_counter("client", (host::QDISC_DROPPED, "eth0"), 100);
            builder.host_counter("client", (host::QDISC_DROPPED, "eth7"), 5000);
            builder.host_counter("client", (host::IP_OUT_DISCARDS, ""), n_heard);
            builder.host_counter("client", (host::UDP_SNDBUF_ERRORS, ""), n_heard);
            let run = builder.analyzed();
            let sum = run.tests[0].conservation.as_ref().unwrap();
            let at = |place: &str| sum.drops.iter().find(|drop| drop.place == place).map(|drop| drop.n_dropped);
            assert_eq!((at("sender's qdisc"), sum.n_unexplained), (Some(100), 0), "{n_heard} heard of");
            assert_eq!(at("sender's ip output"), Some(n_of_ip));
        }
    }

    #[test]
    fn what_was_refused_was_never_sent_and_so_not_dropped() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000)]);
        builder.total("client", count::SEND_REFUSED, 50);
        builder.host_counter("client", (host::UDP_SNDBUF_ERRORS, ""), 50);
        assert_eq!(builder.analyzed().tests[0].conservation.as_ref().unwrap().n_unexplained, 0);
    }

    fn dropped(sum: &Conservation) -> Vec<(&str, u64)> {
        let counted = sum.drops.iter().filter(|drop| drop.n_dropped > 0);
        counted.map(|drop| (drop.place.as_str(), drop.n_dropped)).collect()
    }

    #[test]
    fn each_place_of_a_device_between_the_two_counts_once() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 400)]);
        builder.device_between("dut");
        // The ring: the sender's interface and the device's count the same frames, and the device's backlog is the machine's.
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_XDP_DROPPED, "eth0"), 200);
        builder.host_counter("dut", (host::NFT_DROPPED, "ip fathom forward 7"), 150);
        builder.host_counter("dut", (host::IP_IN_NO_ROUTES, ""), 50);
        // So do the device's interface and the receiver's behind it.
        builder.host_counter("dut", (host::DEV_TX_DROPPED, "eth1"), 70);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 70);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "br0"), 999);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        let places = [
            ("device's receive ring", 100),
            ("device's XDP program", 200),
            ("device's filter rule", 150),
            ("device's ip forwarding", 50),
            ("device's output", 70),
        ];
        assert_eq!((dropped(sum), sum.n_unexplained), (places.to_vec(), 600 - 570));
    }

    #[test]
    fn what_a_device_dropped_of_two_ways_at_once_is_told_once_of_both() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 700)]);
        builder.add_reverse((2000, 1600));
        builder.device_between("dut");
        // The rings in front of the device, the device itself, and the rings behind it.
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("target", (host::DEV_TX_DROPPED, "eth0"), 150);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "eth1"), 150);
        builder.host_counter("dut", (host::NFT_DROPPED, "ip fathom forward 7"), 380);
        builder.host_counter("dut", (host::DEV_TX_DROPPED, "eth1"), 50);
        builder.host_counter("dut", (host::DEV_TX_DROPPED, "eth0"), 20);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 50);
        builder.host_counter("client", (host::DEV_RX_DROPPED, "eth0"), 20);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        let places = [("device's receive ring", 250), ("device's filter rule", 380), ("device's output", 70)];
        assert_eq!((dropped(sum), sum.n_unexplained), (places.to_vec(), 0));
        assert_eq!((sum.what.as_str(), sum.n_sent, sum.n_received), ("datagrams both ways", 3000, 2300));
        assert_eq!(run.tests[1].conservation, None, "it is in that of the first");
        let rule = run.findings.iter().find(|finding| finding.id == "device-rule").unwrap();
        assert_eq!(rule.tests, ["udp_stream", "back"]);
        assert!(rule.title.contains("380 dropped of 3,000"), "{}", rule.title);
    }

    #[test]
    fn a_test_of_streams_has_no_conservation() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        assert_eq!(builder.analyzed().tests[0].conservation, None);
    }

    #[test]
    fn when_the_responder_sends_it_is_the_sender() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 900)]);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.side = if record.side == Side::Initiator { Side::Responder } else { Side::Initiator };
        }
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 100);
        assert_eq!(builder.analyzed().tests[0].conservation.as_ref().unwrap().n_unexplained, 0);
    }
}
