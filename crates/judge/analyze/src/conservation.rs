//! Accounts for everything that was sent: received, dropped at a place with a counter, or unexplained.
//!
//! Counters are identified by name. The side that counted what it sent is the sender.

use std::collections::BTreeMap;

use fathom_model::{
    Conservation, Environment, Layer, Side, Trial,
    names::{count, host},
    run::{Host, TestRun},
    summary::Drops,
    units::ratio,
};

use crate::{
    path::{self, cards, devices, is_memory},
    window::{host_of, hosts_of_side, is_complete, members, record_of},
};

/// Returns the sending side and the receiving side if all traffic goes one way.
pub(crate) fn one_way(test: &TestRun, sent: &str, received: &str) -> Option<(Side, Side)> {
    let counted = |side, counter: &str| {
        test.trials
            .iter()
            .any(|trial| record_of(trial, side).is_some_and(|(_, record)| record.totals.get(counter) > Some(&0)))
    };
    let ways = [(Side::Initiator, Side::Responder), (Side::Responder, Side::Initiator)];
    // If a side also receives what it counts, or answers, the traffic is not one-way.
    ways.into_iter().find(|(from, to)| {
        counted(*from, sent) && !counted(*to, sent) && !counted(*from, received) && !counted(*from, count::TRANSACTIONS)
    })
}

/// Returns the growth of a host's counter over all trials, for all of its instances or for one.
pub(crate) fn host_growth(trials: &[&Trial], host: &str, counter: &str, of: Option<&str>) -> u64 {
    let records =
        trials.iter().flat_map(|trial| members(trial, host).into_iter().filter_map(|host| trial.hosts.get(host)));
    let series = records.flat_map(|record| record.series_of(counter));
    series.filter(|series| of.is_none_or(|of| series.of == of)).map(fathom_model::record::Series::growth).sum()
}

/// Returns the devices of a host ([`path::redirects`]) through which it received the bytes of a test: about as many passed them. Those of others may be
/// for another interface.
pub(crate) fn redirects<'a>(trials: &[&Trial], name: &str, facts: &'a Environment) -> Vec<&'a str> {
    // The headers of short packets double their bytes.
    const PASSED: std::ops::Range<f64> = 0.8..2.0;
    let records = trials.iter().flat_map(|trial| &trial.records).filter(|(key, _)| host_of(key) == name);
    let received: u64 = records.filter_map(|(_, record)| record.totals.get(count::BYTES_RECEIVED)).sum();
    let passed = |device: &str| ratio(host_growth(trials, name, host::DEV_RX_BYTES, Some(device)), received);
    path::redirects(facts).filter(|device| passed(device).is_some_and(|share| PASSED.contains(&share))).collect()
}

/// Where packets go after IP has counted them as received, as far as it counts that by family.
const RECEIVED_PACKETS_WENT: [&str; 9] = [
    host::IP_IN_DELIVERS,
    host::IP_FORWARDED,
    host::IP_IN_UNKNOWN_PROTOCOLS,
    host::IP_IN_HEADER_ERRORS,
    host::IP_IN_ADDRESS_ERRORS,
    host::IP_IN_NO_ROUTES,
    host::IP_IN_DISCARDS,
    host::IP_FRAGMENTATION_FAILS,
    host::IP_MARTIAN_DESTINATION,
];

/// Returns the packets that IP of a host received and that went nowhere, over all trials; `None` if it does not count what it delivers.
///
/// IP counts a packet as it arrives (`ip_rcv_core` of Linux 6.18) and once more as a protocol takes it (`ip_protocol_deliver_rcu`), whatever the
/// socket does with it. What the hooks of netfilter drop between the two is the rest. So are a few packets of multicast groups that the host has not
/// joined and those that a policy of xfrm refuses; and on a device what IPVS, NFQUEUE or SYNPROXY pass on from such a hook without a loss. Segments
/// that the interface joined count once.
pub(crate) fn undelivered(trials: &[&Trial], host: &str) -> Option<u64> {
    let grown = |counter, of| host_growth(trials, host, counter, of);
    let is_counted = |counter| trials.iter().all(|trial| was_sampled(&[trial], host, counter));
    if ![host::IP_IN_RECEIVES, host::IP_IN_DELIVERS].into_iter().all(is_counted) {
        return None;
    }
    let of_family = |of: &'static str, n_back: u64| {
        let of = Some(of);
        let in_parts = grown(host::IP_FRAGMENTS_RECEIVED, of).saturating_sub(grown(host::IP_REASSEMBLED, of));
        let went = RECEIVED_PACKETS_WENT.into_iter().map(|counter| grown(counter, of)).sum::<u64>();
        grown(host::IP_IN_RECEIVES, of).saturating_sub(went.saturating_add(in_parts).saturating_add(n_back))
    };
    // The kernel counts the drops of the reverse path filter among the martians too, for the whole machine.
    let n_back = grown(host::IP_RP_FILTER_DROPPED, None).max(grown(host::IP_MARTIAN_SOURCE, None));
    let known = [host::NFT_DROPPED, host::CONNTRACK_DROPPED, host::NFQUEUE_DROPPED, host::NFQUEUE_USER_DROPPED];
    let n_known = known.into_iter().map(|counter| grown(counter, None)).sum();
    let all = of_family("", n_back).saturating_add(of_family("ipv6", 0));
    Some(all.saturating_sub(n_known))
}

fn total(trials: &[&Trial], side: Side, counter: &str) -> Option<u64> {
    trials
        .iter()
        .filter_map(|trial| record_of(trial, side)?.1.totals.get(counter).copied())
        .reduce(|sum, one| sum + one)
}

/// A place that can drop packets: its name, its counter, and its drops that no deeper place counts.
type DropPlace = (&'static str, &'static str, u64);

/// The index of the device among the sender's places.
const AT_DEVICE: usize = 3;

/// Returns the drops of a sending host. Each packet counts at the deepest place that counts it.
///
/// A drop at the device returns an error, which IP and the socket count again (`ip_send_skb`, `udp_send_skb` of Linux 6.18). A
/// memory device also counts the drops of the `backlog` behind it (`veth_xmit`). A full queueing discipline returns an error
/// too; one that drops on purpose (netem) does not. Packets in `refused` were never counted as sent.
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

/// The ring of a veth pair, if no device is between its ends.
const VETH_RING: &str = "ring between the veth's ends";

/// Returns the drops of a receiving host before the socket.
///
/// A device also counts the drops of its `backlog` (`enqueue_to_backlog`) and the packets that did not fit in the `ring` of a
/// veth. The other end of the veth counts these too (`veth_get_stats64` of Linux 6.18).
fn receiver_drops(grown: impl Fn(&str) -> u64, redirected: u64, (backlog, ring): (u64, u64)) -> [DropPlace; 10] {
    let device = grown(host::DEV_RX_DROPPED).saturating_sub(backlog).saturating_sub(ring);
    [
        ("receiver's card, damaged", host::DEV_RX_DAMAGED, grown(host::DEV_RX_DAMAGED)),
        (BEHIND_COUNTER[0], host::DEV_RX_DROPPED, device),
        (BEHIND_COUNTER[1], host::SOFTNET_DROPPED, backlog),
        (BEHIND_COUNTER[2], host::QDISC_IN_DROPPED, grown(host::QDISC_IN_DROPPED)),
        (BEHIND_COUNTER[3], host::QDISC_DROPPED, redirected),
        (BEHIND_COUNTER[4], host::IP_RP_FILTER_DROPPED, grown(host::IP_RP_FILTER_DROPPED)),
        (BEHIND_COUNTER[5], host::NFT_DROPPED, grown(host::NFT_DROPPED)),
        (BEHIND_COUNTER[6], host::IP_IN_DISCARDS, grown(host::IP_IN_DISCARDS)),
        (BEHIND_COUNTER[7], host::UDP_NO_PORTS, grown(host::UDP_NO_PORTS)),
        (BEHIND_COUNTER[8], host::CONNTRACK_DROPPED, grown(host::CONNTRACK_DROPPED)),
    ]
}

/// Places where frames can be dropped after a counter in front of the stack has counted them.
const BEHIND_COUNTER: [&str; 9] = [
    "receiver's device",
    "receiver's backlog",
    "receiver's tc ingress",
    "receiver's queue (ifb)",
    "receiver's reverse path filter",
    "receiver's filter rule",
    "receiver's ip input",
    "receiver's closed port",
    "receiver's connection tracking",
];

/// The drop places of a device between the two ends. These are the values of [`Drops::place`].
pub(crate) mod device {
    /// The receive ring: the device did not take its frames as fast as they came.
    pub(crate) const RING: &str = "device's receive ring";
    /// A program that runs before the network stack, such as a policer.
    pub(crate) const PROGRAM: &str = "device's XDP program";
    /// A rule of the packet filter.
    pub(crate) const RULE: &str = "device's filter rule";
    /// Connection tracking: the table is full, or an entry could not be made.
    pub(crate) const CONNTRACK: &str = "device's connection tracking";
    /// The queue of packets for a program (NFQUEUE).
    pub(crate) const PACKET_QUEUE: &str = "device's packet queue";
    /// A counter that the device itself prints.
    pub(crate) const OWN: &str = "device's own counter";
    /// IP: no route, an expired time to live, the reverse path filter, a packet too large for the next link, or no memory.
    pub(crate) const FORWARDING: &str = "device's ip forwarding";
    /// The queue in front of the link to the receiver.
    pub(crate) const QUEUE: &str = "device's qdisc";
    /// The link to the receiver did not take the packets.
    pub(crate) const OUTPUT: &str = "device's output";
}

/// Returns the drops of a device between the two ends. `ring` is the number of frames that the sender saw refused, if the
/// sender's interface is memory of the device.
///
/// The receive drops of the device's interfaces include `ring` (`veth_get_stats64` of Linux 6.18). Their send drops include the
/// drops of the `backlog` behind them.
fn device_drops(grown: impl Fn(&str) -> u64, ring: u64, backlog: u64) -> [DropPlace; 15] {
    let ip = |counter| (device::FORWARDING, counter, grown(counter));
    [
        (device::RING, host::DEV_RX_DROPPED, grown(host::DEV_RX_DROPPED).max(ring)),
        (device::PROGRAM, host::DEV_XDP_DROPPED, grown(host::DEV_XDP_DROPPED)),
        (device::RULE, host::NFT_DROPPED, grown(host::NFT_DROPPED)),
        (device::CONNTRACK, host::CONNTRACK_DROPPED, grown(host::CONNTRACK_DROPPED)),
        (device::PACKET_QUEUE, host::NFQUEUE_DROPPED, grown(host::NFQUEUE_DROPPED)),
        (device::PACKET_QUEUE, host::NFQUEUE_USER_DROPPED, grown(host::NFQUEUE_USER_DROPPED)),
        ip(host::IP_IN_HEADER_ERRORS),
        ip(host::IP_IN_ADDRESS_ERRORS),
        ip(host::IP_IN_NO_ROUTES),
        ip(host::IP_RP_FILTER_DROPPED),
        ip(host::IP_FRAGMENTATION_FAILS),
        ip(host::IP_IN_DISCARDS),
        ip(host::IP_OUT_DISCARDS),
        (device::QUEUE, host::QDISC_DROPPED, grown(host::QDISC_DROPPED)),
        (device::OUTPUT, host::DEV_TX_DROPPED, grown(host::DEV_TX_DROPPED).saturating_sub(backlog)),
    ]
}

/// One direction of the tests that are summed up: its trials, its senders and its receivers.
struct DirectionTrials<'a> {
    trials: Vec<&'a Trial>,
    from: (Side, Vec<&'a str>),
    to: (Side, Vec<&'a str>),
}

impl<'a> DirectionTrials<'a> {
    fn of(test: &'a TestRun, trials: Vec<&'a Trial>) -> Option<Self> {
        let (from, to) = one_way(test, count::SENT, count::RECEIVED)?;
        let hosts_of = |side| trials.iter().map(|trial| hosts_of_side(trial, side)).find(|hosts| !hosts.is_empty());
        let (senders, receivers) = (hosts_of(from)?, hosts_of(to)?);
        Some(Self { from: (from, senders), to: (to, receivers), trials })
    }
}

/// Returns the trials of a test that values are computed from: the rounds that are complete in all tests of the group, or all
/// rounds if none is complete. Without the counters of a device that prints them in other rounds, a round is not.
fn complete_trials<'a>(test: &'a TestRun, together: &[&TestRun]) -> Vec<&'a Trial> {
    let is_counted = |trial: &Trial| trial.hosts.contains_key(host::DEVICE_COUNTERS);
    let has_counters = test.trials.iter().any(is_counted);
    let is_whole = |trial: &&Trial| {
        let of_round = |test: &&TestRun| test.trials.iter().any(|one| one.round == trial.round && is_complete(one));
        is_complete(trial) && is_counted(trial) == has_counters && together.iter().all(of_round)
    };
    let whole: Vec<&Trial> = test.trials.iter().filter(is_whole).collect();
    if whole.is_empty() { test.trials.iter().collect() } else { whole }
}

/// Returns the sum of a counter over all directions, or `None` if no direction counted it.
fn sum(ways: &[DirectionTrials<'_>], of: impl Fn(&DirectionTrials<'_>) -> Option<u64>) -> Option<u64> {
    ways.iter().filter_map(of).reduce(|sum, one| sum + one)
}

/// The places between two hosts, each with the host that counts there.
type HostDropPlaces = Vec<(String, DropPlace)>;

/// Returns the name of a layer's countable unit.
pub(crate) const fn unit_name(layer: Layer) -> Option<&'static str> {
    match layer {
        Layer::Udp => Some("datagrams"),
        Layer::Frames => Some("frames"),
        Layer::App | Layer::Http | Layer::Tcp | Layer::Path => None,
    }
}

/// What counts between the two ends of a test.
#[derive(Clone, Copy)]
pub(crate) struct DeviceBetween<'a> {
    /// The host that is the device, if its counters are read.
    pub(crate) host: Option<&'a str>,
    /// Whether the counters that the device itself prints are of this test.
    pub(crate) prints_counters: bool,
}

/// Sums up tests of datagrams or frames that run together, because a device between the ends cannot tell them apart.
///
/// Returns `None` for other tests, or if one end did not count.
pub(crate) fn conservation(
    tests: &[&TestRun],
    hosts: &BTreeMap<String, Host>,
    device: DeviceBetween<'_>,
) -> Option<Conservation> {
    let via = device.host;
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
        counter: format!("{} {counter}", shown(&host)),
        n_dropped,
    });
    let rings = ways.iter().flat_map(|way| ring_drops(&way.trials, (way.from.0, &way.from.1), (way.to.0, &way.to.1)));
    let rings = rings.filter(|drop| via.is_none() || drop.place != VETH_RING);
    let sockets = ways.iter().flat_map(|way| socket_drops(layer, &way.trials, way.to.0, &way.to.1));
    let own = if device.prints_counters { own_drops(&ways) } else { Vec::new() };
    let mut drops: Vec<Drops> = rings.chain(drops).chain(own).chain(sockets).collect();
    let passed_on = counted(|way| way.to.0, count::PASSED_ON).unwrap_or(0);
    let n_twice = unexplained(n_sent, n_received, &drops).saturating_neg();
    discount_duplicates(&mut drops, passed_on.min(u64::try_from(n_twice).unwrap_or(0)));
    // What is above that was sent by strangers.
    let n_strange = u64::try_from(unexplained(n_sent, n_received, &drops).saturating_neg()).unwrap_or(0);
    if let Some(filter) = drops.iter_mut().find(|drop| drop.place == PORT_FILTER) {
        filter.n_dropped = filter.n_dropped.saturating_sub(n_strange);
    }
    Some(Conservation {
        what: if ways.len() > 1 { format!("{what} both ways") } else { what.to_owned() },
        n_intended: counted(|way| way.from.0, count::INTENDED),
        n_sent,
        n_received,
        n_unexplained: unexplained(n_sent, n_received, &drops),
        drops,
    })
}

/// Returns the drops that a device prints: its counters whose name contains `drop`.
fn own_drops(ways: &[DirectionTrials<'_>]) -> Vec<Drops> {
    // Tests that run together have the same device.
    let trials = ways.first().map(|way| way.trials.as_slice()).unwrap_or_default();
    let mut grown: BTreeMap<&str, u64> = BTreeMap::new();
    for series in
        trials.iter().filter_map(|trial| trial.hosts.get(host::DEVICE_COUNTERS)).flat_map(|record| &record.series)
    {
        if series.name.contains("drop") {
            *grown.entry(&series.name).or_default() += series.growth();
        }
    }
    let drops = grown.into_iter().map(|(name, n_dropped)| Drops {
        place: device::OWN.to_owned(),
        counter: format!("{} {name}", host::DEVICE_COUNTERS),
        n_dropped,
    });
    drops.collect()
}

/// The separator between the names of hosts that are counted as one.
const AND: &str = " and ";

/// Returns all places where hosts count drops: at the senders, at the device in between, and at the receivers.
fn drop_places(ways: &[DirectionTrials<'_>], hosts: &BTreeMap<String, Host>, via: Option<&str>) -> HostDropPlaces {
    // A host that plays both roles counts once.
    let senders = distinct(ways.iter().flat_map(|way| &way.from.1));
    let receivers = distinct(ways.iter().flat_map(|way| &way.to.1));
    // Tests that run together have the same hosts, and each test has the counters of all of them.
    let trials = ways.first().map(|way| way.trials.as_slice()).unwrap_or_default();
    let grown = |of: &[&str], counter: &str| -> u64 {
        let of_each = of.iter().map(|host| growth_on_path(trials, host, hosts.get(*host), counter));
        // The backlogs belong to the machine, so hosts that are connected through memory share them.
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
            // If the interface is memory, its drops are frames that did not fit in the ring of the device.
            let at_device = if is_of_memory { std::mem::take(&mut sending[AT_DEVICE].2) } else { 0 };
            let places = device_drops(|counter| grown(&[via], counter), at_device.saturating_add(ring), backlog);
            let output = places.last().map_or(0, |place| place.2);
            (places.map(|place| (via.to_owned(), place)).to_vec(), if is_memory(hosts, via) { output } else { 0 })
        }
        None => (Vec::new(), ring),
    };
    let redirected = |name: &&str| -> u64 {
        let devices = hosts.get(*name).map_or_else(Vec::new, |host| redirects(trials, name, &host.environment));
        devices.into_iter().map(|device| host_growth(trials, name, host::QDISC_DROPPED, Some(device))).sum()
    };
    let redirected = receivers.iter().map(redirected).sum();
    let receiving = receiver_drops(|counter| grown(&receivers, counter), redirected, (backlog, in_front));
    let sending = sending.map(|place| (senders.join(AND), place));
    let receiving = receiving.map(|place| (receivers.join(AND), place));
    sending.into_iter().chain(between).chain(receiving).collect()
}

/// The names of some hosts, or their number if there are too many for a line.
fn shown(hosts: &str) -> String {
    let n = hosts.split(AND).count();
    if n > 2 { format!("{n} hosts") } else { hosts.to_owned() }
}

fn distinct<'a>(hosts: impl Iterator<Item = &'a &'a str>) -> Vec<&'a str> {
    hosts.fold(Vec::new(), |mut all, host| {
        all.extend((!all.contains(host)).then_some(*host));
        all
    })
}

/// Returns the growth of a host's counter. Interface counters are limited to the interfaces on the path; of the devices below them only the queues
/// count, since a device on top of others may count their drops once more.
fn growth_on_path(trials: &[&Trial], name: &str, host: Option<&Host>, counter: &str) -> u64 {
    let interfaces: Vec<&String> =
        host.map_or_else(Vec::new, |host| host.interface.iter().chain(&host.further_interfaces).collect());
    if interfaces.is_empty() || !host::OF_INTERFACES.contains(&counter) {
        return host_growth(trials, name, counter, None);
    }
    let growth = |device: &str| host_growth(trials, name, counter, Some(device));
    let with_those_below = |interface: &String| match (counter, host) {
        (host::QDISC_DROPPED | host::QDISC_IN_DROPPED, Some(host)) => {
            devices(&host.environment, interface).into_iter().map(growth).sum::<u64>()
        }
        // A bond counts what its cards do once more.
        (host::DEV_RX_DAMAGED, Some(host)) => cards(&host.environment, interface).into_iter().map(growth).sum(),
        _ => growth(interface),
    };
    interfaces.into_iter().map(with_those_below).sum()
}

fn was_sampled(trials: &[&Trial], host: &str, counter: &str) -> bool {
    trials.iter().any(|trial| trial.hosts.get(host).is_some_and(|record| record.series_of(counter).next().is_some()))
}

/// Returns the drops in full rings that the records of the trial count: between the ends of a veth, and of AF_XDP sockets.
fn ring_drops<'a>(
    trials: &'a [&Trial],
    from: (Side, &'a [&str]),
    to: (Side, &'a [&str]),
) -> impl Iterator<Item = Drops> + use<'a> {
    let places = [
        (from, VETH_RING, count::VETH_RING_DROPPED),
        (to, "receiver's AF_XDP ring", count::RING_FULL),
        (to, "receiver's AF_XDP memory", count::FILL_EMPTY),
    ];
    places.into_iter().filter_map(|((side, hosts), place, counter)| {
        let n_dropped = total(trials, side, counter).filter(|n| *n > 0)?;
        Some(Drops { place: place.to_owned(), counter: format!("{} {counter}", shown(&hosts.join(AND))), n_dropped })
    })
}

/// The filter of a port, which takes packets of the other side alone.
const PORT_FILTER: &str = "receiver's port filter";

/// Returns the drops of the receiving socket: damaged datagrams, those of addresses that may not send to it, and datagrams that did not
/// fit in its buffer.
///
/// A socket counts all of them as its own drops (`__skb_checksum_complete` in `udp_recvmsg` of Linux 6.18, and what its filter drops).
/// The host's counter of UDP buffer errors has the full buffers alone: if it is 0, none was full, and only a lack of memory drops too.
/// Otherwise the larger of the two counts, once, because the host counts a super-buffer as one.
fn socket_drops(layer: Layer, trials: &[&Trial], to: Side, receivers: &[&str]) -> Vec<Drops> {
    let of_host = |counter: &str| {
        let is_known = |receiver: &&str| layer == Layer::Udp && was_sampled(trials, receiver, counter);
        let grown = receivers.iter().filter(|receiver| is_known(receiver));
        grown.map(|receiver| host_growth(trials, receiver, counter, None)).reduce(|sum, one| sum + one)
    };
    let damaged = of_host(host::UDP_IN_CSUM_ERRORS);
    let own = total(trials, to, count::SOCKET_DROPPED).map(|own| own.saturating_sub(damaged.unwrap_or(0)));
    let full = of_host(host::UDP_RCVBUF_ERRORS);
    let is_memory_out = of_host(host::UDP_MEM_ERRORS) > Some(0);
    let own = own.filter(|_| full != Some(0) || is_memory_out);
    let counter = if full > own { host::UDP_RCVBUF_ERRORS } else { count::SOCKET_DROPPED };
    // If something arrived, what the filter dropped may have been sent by strangers.
    let has_nothing = total(trials, to, count::RECEIVED).unwrap_or(0) == 0;
    let strange = total(trials, to, count::PORT_DROPPED).filter(|_| full.is_some() && has_nothing);
    let places = [
        ("receiver's checksum test", host::UDP_IN_CSUM_ERRORS, damaged),
        (PORT_FILTER, count::PORT_DROPPED, strange),
        ("receiver's socket buffer", counter, own.max(full)),
    ];
    let drops = |(place, counter, n): (&str, &str, Option<u64>)| {
        Some(Drops {
            place: place.to_owned(),
            counter: format!("{} {counter}", shown(&receivers.join(AND))),
            n_dropped: n?,
        })
    };
    places.into_iter().filter_map(drops).collect()
}

/// Subtracts the receiver's stack drops of frames that had already been counted as received.
///
/// Their number is known only from the balance: it is the number of packets that are explained twice.
fn discount_duplicates(drops: &mut [Drops], mut n_twice: u64) {
    for drop in drops.iter_mut().rev().filter(|drop| BEHIND_COUNTER.contains(&drop.place.as_str())) {
        let n = n_twice.min(drop.n_dropped);
        (drop.n_dropped, n_twice) = (drop.n_dropped - n, n_twice - n);
    }
}

/// Returns the packets that no counter explains. Negative if more packets were counted than sent.
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
    fn what_the_filter_of_the_port_dropped_is_told_there_if_nothing_arrived() {
        for (n_received, n_full, n_strange, expected) in
            [(0, 0, 1000, (Some(1000), 0)), (0, 40, 990, (Some(960), 0)), (900, 0, 70, (None, 100))]
        {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, n_received)]);
            builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), n_full);
            builder.total("target", count::SOCKET_DROPPED, n_full);
            builder.total("target", count::PORT_DROPPED, n_strange);
            let run = builder.analyzed();
            let sum = run.tests[0].conservation.as_ref().unwrap();
            let at_filter = sum.drops.iter().find(|drop| drop.place == PORT_FILTER).map(|drop| drop.n_dropped);
            assert_eq!((at_filter, sum.n_unexplained), expected, "{n_received} received");
        }
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
        // The ring: the interfaces of the sender and of the device count the same frames. The device's backlog is the
        // machine's.
        builder.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "eth0"), 100);
        builder.host_counter("dut", (host::DEV_XDP_DROPPED, "eth0"), 200);
        builder.host_counter("dut", (host::NFT_DROPPED, "ip fathom forward 7"), 150);
        builder.host_counter("dut", (host::CONNTRACK_DROPPED, ""), 20);
        builder.host_counter("dut", (host::IP_IN_NO_ROUTES, ""), 50);
        // The interfaces of the device and of the receiver behind it count the same frames too.
        builder.host_counter("dut", (host::DEV_TX_DROPPED, "eth1"), 70);
        builder.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 70);
        builder.host_counter("dut", (host::DEV_RX_DROPPED, "br0"), 999);
        let run = builder.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        let places = [
            ("device's receive ring", 100),
            ("device's XDP program", 200),
            ("device's filter rule", 150),
            ("device's connection tracking", 20),
            ("device's ip forwarding", 50),
            ("device's output", 70),
        ];
        assert_eq!((dropped(sum), sum.n_unexplained), (places.to_vec(), 600 - 590));
    }

    #[test]
    fn what_a_device_prints_is_a_place_of_loss_without_its_host_but_not_on_the_path_without_it() {
        use fathom_model::{ComparisonPlan, PathPlan, TestPlan, TrialTimes, units::Nanos};
        let mut builder = RunBuilder::new();
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        for path in ["direct", "via"] {
            builder.udp_stream(&[(1000, 900), (1000, 900)]);
            let test = builder.run.tests.last_mut().unwrap();
            (test.name, test.path) = (path.to_owned(), Some(path.to_owned()));
            // The counters could not be read after the last trial.
            test.trials[0].hosts.insert(host::DEVICE_COUNTERS.to_owned(), printed(&[("in", 900), ("dropped", 100)]));
            let (name, path) = (test.name.clone(), test.path.clone());
            builder.run.plan.paths.push(PathPlan {
                name: name.clone(),
                at: [].into(),
                via: None,
                translated: Vec::new(),
            });
            let comparison = Some("udp".to_owned());
            let planned = TestPlan { name, path, comparison, ..TestPlan::new("udp_stream", times, "client") };
            builder.run.plan.tests.push(planned);
        }
        builder.run.plan.comparisons.push(ComparisonPlan { name: "udp".to_owned(), at: None, set: None });
        let run = builder.analyzed();
        let sums = [0, 1].map(|idx| run.tests[idx].conservation.as_ref().unwrap());
        assert_eq!((dropped(sums[0]), sums[0].n_unexplained), (Vec::new(), 100));
        assert_eq!((dropped(sums[1]), sums[1].n_unexplained), (vec![(device::OWN, 100)], 0));
    }

    fn printed(counters: &[(&str, u64)]) -> fathom_model::HostRecord {
        let series = counters.iter().map(|(name, n)| fathom_model::record::Series {
            name: (*name).to_owned(),
            of: String::new(),
            values: vec![0, *n],
        });
        fathom_model::HostRecord { series: series.collect(), ..fathom_model::HostRecord::default() }
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
