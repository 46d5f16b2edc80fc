//! Datagrams in fragments to an address that targets share: which orders arrive, and at which target.
//!
//! A state machine that knows neither sockets nor clocks. Each flow first sends whole datagrams, whose answers name its target, then
//! datagrams in fragments, and at the end whole ones again.

pub(crate) mod message;
mod order;
mod packets;
#[cfg(test)]
mod simulated;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
};

use etherparse::{LaxIpSlice, UdpHeader};
use fathom_model::{
    probe::{FragmentOrderRecord, FragmentsRecord, OrderOutcome},
    units::Nanos,
};
use fathom_statistics::splitmix;

pub(crate) use self::order::{HeaderLength, Order};
use self::{
    message::MessageKey,
    packets::{Cut, Datagram, is_fragment},
};
use crate::{
    driver::{CapturedPacket, ProbeTransport, SendOutcome},
    reply::IcmpErrorKind,
    template::icmp_error_to,
};

/// The time between two identifications: the 65,536 of IPv4 last 32 s, and hosts keep the fragments of an incomplete datagram for 30 s.
///
/// Identifications follow from the clock, so that those of the next trial are others too.
pub(crate) const IDENTIFICATION_STEP: Nanos = Nanos::from_micros(500);
/// The flows whose fragments are sent in turn.
const INTERLEAVED_FLOWS: usize = 4;
/// The flows that send incomplete datagrams. A host has 4 MB for all fragments that wait (`net.ipv4.ipfrag_high_thresh`) and drops
/// all others when these are full; each of ours takes 2.3 kB.
pub(crate) const INCOMPLETE_FLOWS: usize = 20;
/// The bits of a message's flow that are the number of the flow.
const FLOW_BITS: u32 = 16;

/// What is sent, and to whom.
#[derive(Debug, Clone)]
pub(crate) struct FragmentConfig {
    /// The sources of the flows.
    pub(crate) flows: Vec<SocketAddr>,
    /// As many sources of another address, in the same order; empty without one.
    pub(crate) twins: Vec<SocketAddr>,
    pub(crate) destination: SocketAddr,
    pub(crate) orders: Vec<Order>,
    /// The datagrams of each flow in each order.
    pub(crate) n_datagrams: usize,
    /// The length in bytes of a datagram's packet before it is cut.
    pub(crate) size: usize,
    /// The longest fragment in bytes, its IP header included.
    pub(crate) mtu: usize,
    /// The time between two datagrams.
    pub(crate) gap: Nanos,
    pub(crate) timeout: Nanos,
    pub(crate) traffic_class: u8,
    pub(crate) seed: u64,
    /// Tells the answers of this trial from others.
    pub(crate) secret: u64,
}

/// Datagrams that are sent together: of one flow, or of several in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    order: Order,
    flows: Vec<usize>,
}

/// What is known about a datagram.
#[derive(Debug, Clone, Copy)]
struct SentDatagram {
    order: Order,
    flow: usize,
    n_answers: u32,
    /// The number of the target that answered first.
    target: Option<usize>,
}

/// The next action of a test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FragmentStep<'a> {
    Send(&'a [u8]),
    Wait(Nanos),
    Done,
}

/// The test as a state machine.
#[derive(Debug)]
pub(crate) struct FragmentTest {
    config: FragmentConfig,
    groups: Vec<Group>,
    /// The groups whose answers are waited for before any fragment is sent.
    n_first: usize,
    next: usize,
    queue: VecDeque<Vec<u8>>,
    due: Nanos,
    last_sent: Nanos,
    last_incomplete: Nanos,
    identification: Option<u32>,
    sent: Vec<SentDatagram>,
    targets: Vec<String>,
    flow_of: BTreeMap<SocketAddr, usize>,
    n_fragments: BTreeMap<Order, u64>,
    /// The fragments that a device of this host took, as a capture saw them.
    n_captured: u64,
    n_too_long: u64,
    n_no_route: u64,
    icmp_errors: BTreeMap<String, u64>,
}

impl FragmentTest {
    pub(crate) fn new(config: FragmentConfig) -> Self {
        let (groups, n_first) = groups(&config);
        let flow_of = config.flows.iter().chain(&config.twins).copied().zip(0..).collect();
        Self {
            groups,
            n_first,
            next: 0,
            queue: VecDeque::new(),
            due: Nanos::ZERO,
            last_sent: Nanos::ZERO,
            last_incomplete: Nanos::ZERO,
            identification: None,
            sent: Vec::new(),
            targets: Vec::new(),
            flow_of,
            n_fragments: BTreeMap::new(),
            n_captured: 0,
            n_too_long: 0,
            n_no_route: 0,
            icmp_errors: BTreeMap::new(),
            config,
        }
    }

    /// Returns the next action.
    pub(crate) fn step(&mut self, now: Nanos) -> FragmentStep<'_> {
        if self.queue.is_empty() {
            if self.next == self.groups.len() || (self.next == self.n_first && !self.queue_allowed(now)) {
                let until = self.answers_until();
                return if now >= until { FragmentStep::Done } else { FragmentStep::Wait(until) };
            }
            if now < self.due {
                return FragmentStep::Wait(self.due);
            }
            self.fill_queue(now);
        }
        FragmentStep::Send(self.queue.front().expect("every order has packets"))
    }

    /// Whether fragments may follow the first whole datagrams: all are answered, or some are and time is over.
    fn queue_allowed(&self, now: Nanos) -> bool {
        let n_answered = self.n_answered();
        n_answered == self.sent.len() || (n_answered > 0 && now >= self.last_sent + self.config.timeout)
    }

    /// When no more answers are waited for.
    fn answers_until(&self) -> Nanos {
        let is_due = |datagram: &SentDatagram| self.outcome(datagram.order) == OrderOutcome::Answered;
        let is_missing = self.sent.iter().any(|datagram| datagram.n_answers == 0 && is_due(datagram));
        (if is_missing { self.last_sent } else { self.last_incomplete }) + self.config.timeout
    }

    fn fill_queue(&mut self, now: Nanos) {
        let group = self.groups[self.next].clone();
        self.next += 1;
        let size = if group.order.is_cut() { self.config.size } else { 0 };
        let headers = if self.config.destination.is_ipv4() { 28 } else { 48 };
        let length = size.saturating_sub(headers).max(message::HEADER);
        let datagrams: Vec<_> = group
            .flows
            .iter()
            .enumerate()
            .map(|(nth, flow)| {
                let identification = self.take_identification(now, group.order != Order::SameId || nth == 0);
                let key = self.key(self.sent.len(), *flow);
                self.sent.push(SentDatagram { order: group.order, flow: *flow, n_answers: 0, target: None });
                let seed = splitmix(self.config.seed, key.number);
                let cut = Cut { mtu: self.config.mtu, identification, seed };
                let payload = message::question(key, length);
                let datagram = Datagram {
                    source: self.source(*flow),
                    destination: self.config.destination,
                    payload: &payload,
                    traffic_class: self.config.traffic_class,
                };
                VecDeque::from(datagram.packets(group.order, cut))
            })
            .collect();
        self.queue = in_turn(datagrams);
        let n_fragments = self.queue.iter().filter(|packet| is_fragment(packet)).count();
        *self.n_fragments.entry(group.order).or_default() += count_of(n_fragments);
        // Time that was lost is not made up for: a burst would overrun the queues of a device.
        self.due = now + Nanos(self.config.gap.0 * count_of(group.flows.len()));
        self.last_sent = now;
        if group.order.is_incomplete() {
            self.last_incomplete = now;
        }
    }

    fn take_identification(&mut self, now: Nanos, is_new: bool) -> u32 {
        let first = || u32::try_from((now.0 / IDENTIFICATION_STEP.0) & u64::from(u32::MAX)).expect("32 bits are left");
        let next = match self.identification {
            None => first(),
            Some(last) if is_new => last.wrapping_add(1),
            Some(last) => last,
        };
        // The kernel replaces an identification of zero.
        let next = if next & u32::from(u16::MAX) == 0 { next.wrapping_add(1) } else { next };
        self.identification = Some(next);
        next
    }

    fn source(&self, flow: usize) -> SocketAddr {
        let n = self.config.flows.len();
        if flow < n { self.config.flows[flow] } else { self.config.twins[flow - n] }
    }

    fn key(&self, number: usize, flow: usize) -> MessageKey {
        MessageKey { number: count_of(number), flow: self.config.secret << FLOW_BITS | count_of(flow) }
    }

    fn outcome(&self, order: Order) -> OrderOutcome {
        order.outcome(self.config.destination.is_ipv4())
    }

    /// Records what became of the packet of the last step. One without room stays and is sent again.
    pub(crate) fn on_sent(&mut self, outcome: SendOutcome) {
        match outcome {
            SendOutcome::WouldBlock => return,
            SendOutcome::TooLong => self.n_too_long += 1,
            SendOutcome::NoRoute(_) => self.n_no_route += 1,
            SendOutcome::Sent(at) => self.last_sent = self.last_sent.max(at),
        }
        self.queue.pop_front();
    }

    /// Records a packet to the target that a device of this host took.
    ///
    /// Its addresses are not looked at: a device in a namespace of this machine shares its bytes, and may have written others over them.
    pub(crate) fn on_outgoing(&mut self, packet: &[u8]) {
        self.n_captured += u64::from(is_fragment(packet));
    }

    /// Records a packet that arrived; returns the flow that it answers.
    pub(crate) fn on_incoming(&mut self, packet: &[u8]) -> Option<usize> {
        let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
        if let Some(error) = icmp_error_to(&ip, self.config.destination.ip()) {
            // A host gives an incomplete datagram up after 30 s or more, so this one was sent by an earlier trial.
            if error != IcmpErrorKind::ReassemblyTimeExceeded {
                *self.icmp_errors.entry(error.to_string()).or_default() += 1;
            }
            return None;
        }
        let (header, payload) = UdpHeader::from_slice(ip.payload().payload).ok()?;
        let from = SocketAddr::new(ip.source_addr(), header.source_port);
        let flow = *self.flow_of.get(&SocketAddr::new(ip.destination_addr(), header.destination_port))?;
        let (key, identity) = message::read(payload).filter(|_| from == self.config.destination)?;
        let number = usize::try_from(key.number).ok()?;
        if self.sent.get(number)?.flow != flow || key != self.key(number, flow) {
            return None;
        }
        let target = self.targets.iter().position(|target| *target == identity).unwrap_or_else(|| {
            self.targets.push(identity);
            self.targets.len() - 1
        });
        let datagram = &mut self.sent[number];
        datagram.n_answers += 1;
        datagram.target.get_or_insert(target);
        Some(flow)
    }

    /// The datagrams that were answered.
    pub(crate) fn n_answered(&self) -> usize {
        self.sent.iter().filter(|datagram| datagram.n_answers > 0).count()
    }

    pub(crate) fn n_sent(&self) -> u64 {
        count_of(self.sent.len())
    }

    pub(crate) fn n_too_long(&self) -> u64 {
        self.n_too_long
    }

    pub(crate) fn n_no_route(&self) -> u64 {
        self.n_no_route
    }

    /// The ICMP errors about our packets, by their words.
    pub(crate) fn icmp_errors(&self) -> &BTreeMap<String, u64> {
        &self.icmp_errors
    }

    /// Returns what became of the datagrams.
    pub(crate) fn result(&self) -> FragmentsRecord {
        let references = self.references();
        let n_flows = references.len();
        let n_unsteady = references.values().filter(|targets| targets.len() > 1).count();
        let mut answers: BTreeMap<String, u64> = BTreeMap::new();
        for target in self.sent.iter().filter_map(|datagram| datagram.target) {
            *answers.entry(self.targets[target].clone()).or_default() += 1;
        }
        let of_order = |order| {
            let sent = self.sent.iter().filter(move |datagram| datagram.order == order).peekable();
            self.order_record(order, sent, &references)
        };
        FragmentsRecord {
            ip_version: if self.config.destination.is_ipv4() { 4 } else { 6 },
            size_bytes: count_of(self.config.size),
            mtu_bytes: count_of(self.config.mtu),
            n_flows: count_of(n_flows),
            n_flows_unsteady: count_of(n_unsteady),
            n_captured: self.n_captured,
            answers,
            orders: std::iter::once(Order::Whole).chain(others(&self.config)).filter_map(of_order).collect(),
        }
    }

    /// The targets that answered the whole datagrams of each flow.
    fn references(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut references: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for datagram in self.sent.iter().filter(|datagram| datagram.order == Order::Whole) {
            let targets = references.entry(datagram.flow).or_default();
            targets.extend(datagram.target.filter(|target| !targets.contains(target)));
        }
        references
    }

    fn order_record<'a>(
        &self,
        order: Order,
        sent: impl Iterator<Item = &'a SentDatagram>,
        references: &BTreeMap<usize, Vec<usize>>,
    ) -> Option<FragmentOrderRecord> {
        let outcome = self.outcome(order);
        let n_fragments = self.n_fragments.get(&order).copied().unwrap_or(0);
        let mut record =
            FragmentOrderRecord { order: order.word(), outcome, n_fragments, ..FragmentOrderRecord::default() };
        for datagram in sent {
            record.n_sent += 1;
            record.n_duplicates += u64::from(datagram.n_answers.saturating_sub(1));
            let Some(target) = datagram.target else { continue };
            record.n_answered += 1;
            match references.get(&datagram.flow).map(Vec::as_slice) {
                Some([reference]) => record.n_elsewhere += u64::from(*reference != target),
                _ => record.n_unjudged += 1,
            }
        }
        (record.n_sent > 0).then_some(record)
    }
}

/// The orders of a test beside the whole datagrams, which each test sends.
fn others(config: &FragmentConfig) -> impl Iterator<Item = Order> {
    config.orders.iter().copied().filter(|order| *order != Order::Whole)
}

fn count_of(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Returns what is sent, and the number of groups before the first fragment.
fn groups(config: &FragmentConfig) -> (Vec<Group>, usize) {
    let n = config.flows.len();
    let whole = || {
        let flows = (0..n + config.twins.len()).map(|flow| Group { order: Order::Whole, flows: vec![flow] });
        std::iter::repeat_n(flows, config.n_datagrams).flatten()
    };
    let mut groups: Vec<Group> = whole().collect();
    let n_first = groups.len();
    let (last, first): (Vec<Order>, Vec<Order>) = others(config).partition(|order| order.is_incomplete());
    // All orders at the same time, so that a short outage does not look like a defect of one of them.
    let mut mixed: Vec<(usize, Group)> = Vec::new();
    for of_order in first.into_iter().map(|order| groups_of(order, config)) {
        let n_groups = of_order.len();
        mixed.extend(of_order.into_iter().enumerate().map(|(nth, group)| (nth * MIXING / n_groups, group)));
    }
    mixed.sort_by_key(|(place, _)| *place);
    groups.extend(mixed.into_iter().map(|(_, group)| group));
    groups.extend(last.into_iter().flat_map(|order| groups_of(order, config)));
    groups.extend(whole());
    (groups, n_first)
}

/// More places than groups of an order.
const MIXING: usize = 1 << 20;

/// Returns the groups of one order.
fn groups_of(order: Order, config: &FragmentConfig) -> Vec<Group> {
    let n = config.flows.len();
    let n_flows = if order.is_incomplete() { n.min(INCOMPLETE_FLOWS) } else { n };
    let flows: Vec<usize> = (0..n_flows).collect();
    let of_order: Vec<Vec<usize>> = match order {
        Order::Interleaved => flows.chunks(INTERLEAVED_FLOWS).map(<[usize]>::to_vec).collect(),
        Order::SameId => config.twins.iter().zip(flows).map(|(_, flow)| vec![flow, n + flow]).collect(),
        _ => flows.into_iter().map(|flow| vec![flow]).collect(),
    };
    // Incomplete datagrams fill the memory of hosts, however many are asked for.
    let n_datagrams = if order.is_incomplete() { 1 } else { config.n_datagrams };
    let of_order = of_order.into_iter().map(|flows| Group { order, flows });
    std::iter::repeat_n(of_order, n_datagrams).flatten().collect()
}

/// Takes one packet of each datagram in turn.
fn in_turn(mut datagrams: Vec<VecDeque<Vec<u8>>>) -> VecDeque<Vec<u8>> {
    let mut packets = VecDeque::new();
    while datagrams.iter().any(|datagram| !datagram.is_empty()) {
        packets.extend(datagrams.iter_mut().filter_map(VecDeque::pop_front));
    }
    packets
}

/// Room for the longest IP packet.
const ROOM: usize = 65_536;
/// The longest wait between two checks for a stop.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// The wait for room in a full queue, which accepts a packet in a few microseconds.
const QUEUE_PAUSE: Nanos = Nanos::from_micros(100);

/// Runs a test on a transport, and calls `on_answer` with the flow of each answer; returns whether it was stopped early.
///
/// # Errors
/// If the transport fails.
pub(crate) fn run<L: ProbeTransport + ?Sized>(
    test: &mut FragmentTest,
    transport: &mut L,
    is_stopped: &dyn Fn() -> bool,
    on_answer: &mut dyn FnMut(usize),
) -> Result<bool, L::Error> {
    let mut room = vec![0; ROOM];
    loop {
        while let Some(packet) = transport.receive(&mut room)? {
            match packet {
                CapturedPacket::Outgoing(length, _) => test.on_outgoing(&room[..length]),
                CapturedPacket::Incoming(length, _) => {
                    if let Some(flow) = test.on_incoming(&room[..length]) {
                        on_answer(flow);
                    }
                }
            }
        }
        if is_stopped() {
            return Ok(true);
        }
        let now = transport.now();
        match test.step(now) {
            FragmentStep::Done => return Ok(false),
            FragmentStep::Wait(until) => transport.wait(until.min(now + POLL_INTERVAL))?,
            FragmentStep::Send(packet) => {
                let outcome = transport.send(packet)?;
                test.on_sent(outcome);
                if outcome == SendOutcome::WouldBlock {
                    transport.wait(now + QUEUE_PAUSE)?;
                }
            }
        }
    }
}
