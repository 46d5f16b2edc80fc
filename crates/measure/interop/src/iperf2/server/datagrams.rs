//! The datagrams of all clients at one socket.
//!
//! Anybody can forge the source of a datagram. So nothing is sent to a source but its report, and in all no more bytes than came from
//! it; more is sent only where [`BackTraffic`](super::BackTraffic) allows it. A flow of a single datagram makes room for others.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    thread::Scope,
};

use fathom_model::units::{Nanos, approximate, rounded};
use fathom_sys::{
    clock,
    policy::Destination,
    process::threads,
    socket::{
        self, Sender, Socket, Type, Wait,
        datagram::{BatchShape, ReceiveBatch},
    },
};

use super::{
    connection::{age_of, back_plan, back_times},
    state::{FlowPlace, NotAdmitted, ServerState},
};
use crate::{
    iperf2::{
        ClientHeader, DatagramNumber, Error, FlowInfo, FlowOutcome, FlowRole, FlowTable, ServerReport, TestMode,
        TransportProtocol, UDP_LENGTH_MAX, UDP_LENGTH_V4,
        client::request_report,
        data::{self, Arrivals, FlowCounter},
        flow_table::{FlowTimes, RunningFlow},
        put_sent_time, read_datagram, socket_setup,
    },
    sockets::{addresses, canonical, open_dual_stack},
};

/// Datagrams per receive call.
const BATCH: usize = 32;
/// How long a call waits before it looks for the end.
const RECEIVE_TIMEOUT: Nanos = Nanos::from_millis(20);
/// How long a flow may be silent without its end mark.
const SILENT_MAX: Nanos = Nanos::from_secs(10);
/// How long end marks are answered after the first one, and late datagrams belong to the flow that has ended.
const ANSWER_MAX: Nanos = Nanos::from_secs(3);
/// How long requests of a client may come after the flow that they asked for: its next test from the same port gets one again.
const REQUESTS_MAX: Nanos = Nanos::from_secs(1);
/// The number of end marks of a flow that this side sends; each may be lost.
const END_MARKS: u64 = 3;
/// How long a port that got a report stays open: iperf waits 250 ms for silence.
const LINGER: Nanos = Nanos::from_millis(300);
const END_MARK_EVERY: Nanos = Nanos::from_millis(5);

/// A sender of datagrams.
enum Peer<'s> {
    Receiving(Box<ReceivingFlow<'s>>),
    /// The flow has ended; further end marks get the same report.
    Answered {
        report: ServerReport,
        budget: ReplyBudget,
        /// Whether its numbers have 64 bits.
        is_wide: bool,
        until: Nanos,
    },
    /// It is being sent to by the flow at this place; what it says meanwhile is ignored.
    Sending(Weak<FlowPlace<'s>>),
    /// It was refused, or it has been sent to; what it says is ignored until this time.
    Ignored {
        until: Nanos,
    },
}

impl Peer<'_> {
    /// When it is forgotten; `None` as long as it has a flow.
    fn until(&self) -> Option<Nanos> {
        match self {
            Self::Receiving(_) => None,
            Self::Answered { until, .. } | Self::Ignored { until } => Some(*until),
            Self::Sending(place) => (place.strong_count() == 0).then_some(Nanos::ZERO),
        }
    }
}

struct ReceivingFlow<'s> {
    flow: Arc<RunningFlow>,
    arrivals: Arrivals,
    header: ClientHeader,
    n_datagrams: u64,
    ends_at: Nanos,
    place: FlowPlace<'s>,
}

/// A flow that has ended.
struct EndedFlow<'s> {
    outcome: FlowOutcome,
    /// All that came from its sender.
    n_bytes: u64,
    header: ClientHeader,
    _place: FlowPlace<'s>,
}

/// How many bytes may be sent to an address that has not proven itself: as many as came from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplyBudget(u64);

impl ReplyBudget {
    fn received(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Returns the report as long as the budget allows, and takes its bytes from it.
    fn spend(&mut self, report: &ServerReport) -> Option<Vec<u8>> {
        let bytes = report.write(usize::try_from(self.0).unwrap_or(usize::MAX))?;
        self.0 -= bytes.len() as u64;
        Some(bytes)
    }
}

/// Serves datagrams until the server is over.
pub(super) fn serve<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    socket: &Socket,
    state: &'env ServerState,
    table: &'env FlowTable<'_>,
) -> Result<(), Error> {
    socket::set_report_time(socket)?;
    socket::set_timeout(socket, RECEIVE_TIMEOUT)?;
    let mut batch = ReceiveBatch::of_questions(BatchShape { count: BATCH, size: UDP_LENGTH_MAX });
    let mut server =
        DatagramServer { scope, state, table, peers: HashMap::new(), strays: Vec::new(), next_expiry: Nanos::ZERO };
    while !state.is_over() {
        // The refusal of an earlier report does not affect the next datagram.
        let n = batch.receive(socket, Wait::Block).ok().flatten().unwrap_or(0);
        for index in 0..n {
            let Some(from) = batch.source_of(index) else { continue };
            let sender = batch.sender(index);
            let arrived = Datagram { bytes: batch.payload(index), received: batch.kernel_time(index), from };
            if let (Some(answer), Some(sender)) = (server.take(&arrived), sender) {
                // The client asks again if a report is lost.
                let _ = socket::send_to(socket, &answer, &sender, Wait::Never);
            }
        }
        for (bytes, sender) in std::mem::take(&mut server.strays) {
            let answer =
                sender.address().and_then(|from| server.take(&Datagram { bytes: &bytes, received: None, from }));
            if let Some(answer) = answer {
                let _ = socket::send_to(socket, &answer, &sender, Wait::Never);
            }
        }
        server.expire(clock::now());
    }
    server.end_all();
    Ok(())
}

/// A received datagram.
struct Datagram<'a> {
    bytes: &'a [u8],
    /// On the wall clock.
    received: Option<Nanos>,
    from: SocketAddr,
}

struct DatagramServer<'scope, 'env: 'scope, 'o> {
    scope: &'scope Scope<'scope, 'env>,
    state: &'env ServerState,
    table: &'env FlowTable<'o>,
    peers: HashMap<SocketAddr, Peer<'env>>,
    /// Datagrams of other clients that came to the socket of a flow back before it was connected.
    strays: Vec<(Vec<u8>, Sender)>,
    next_expiry: Nanos,
}

impl<'env> DatagramServer<'_, 'env, '_> {
    /// Takes a datagram; returns the answer to its sender, if it gets one.
    fn take(&mut self, datagram: &Datagram<'_>) -> Option<Vec<u8>> {
        let length = datagram.bytes.len() as u64;
        match self.peers.get_mut(&datagram.from) {
            Some(Peer::Receiving(receiving)) => {
                receiving.n_datagrams += 1;
                receiving.arrivals.take(datagram.bytes, datagram.received, &*receiving.flow);
                if receiving.arrivals.is_over { self.finish(datagram.from) } else { None }
            }
            Some(Peer::Answered { report, budget, is_wide, .. }) => {
                budget.received(length);
                let number = DatagramNumber::read(datagram.bytes, *is_wide)?;
                if number.is_end {
                    return budget.spend(report);
                }
                // A client may begin again from the same port.
                if number.number <= 1 { self.open(datagram) } else { None }
            }
            Some(Peer::Sending(_) | Peer::Ignored { .. }) => None,
            None => self.open(datagram),
        }
    }

    /// Begins the flow of a new sender.
    fn open(&mut self, datagram: &Datagram<'_>) -> Option<Vec<u8>> {
        let first = DatagramNumber::read(datagram.bytes, false).filter(|number| !number.is_end);
        first?;
        let peer = canonical(datagram.from);
        if !self.state.is_welcome(peer.ip()) {
            self.state.reject();
            return None;
        }
        let header = if self.state.options.is_back { None } else { read_datagram(datagram.bytes) };
        let asked =
            header.unwrap_or(ClientHeader { has_wide_numbers: self.state.options.is_back, ..ClientHeader::default() });
        if let Err(why) = self.check(&asked, peer.ip()) {
            if self.peers.len() < self.state.options.flows_max {
                self.peers.insert(datagram.from, Peer::Ignored { until: clock::now() + ANSWER_MAX });
            }
            self.refuse(peer.ip(), why);
            return None;
        }
        let place = self.place()?;
        if asked.mode == TestMode::Reverse {
            self.send_back(datagram.from, peer, asked, place);
        } else {
            self.receive(datagram, peer, asked, place)?;
        }
        if asked.mode == TestMode::Dual {
            self.connect_back(peer, asked);
        }
        None
    }

    /// Begins a flow with its first datagram.
    fn receive(
        &mut self,
        datagram: &Datagram<'_>,
        peer: SocketAddr,
        asked: ClientHeader,
        place: FlowPlace<'env>,
    ) -> Option<()> {
        let now = clock::now();
        let wall = datagram.received.unwrap_or_else(clock::wall);
        let age = asked.trip_start.and_then(|start| age_of(start, wall));
        let info = self.info(peer, &asked, (FlowRole::Receiver, age.is_some())).ok()?;
        let ends_at = now + self.state.options.time_max;
        let times = FlowTimes { start: now - age.unwrap_or_default(), ends_at };
        let flow = self.table.add(info, None, times);
        self.state.begin(&flow);
        let takes_times = age.is_some() || self.state.options.counts_calls;
        let arrivals = Arrivals::new(asked.has_wide_numbers, takes_times, now);
        let mut receiving = ReceivingFlow { flow, arrivals, header: asked, n_datagrams: 1, ends_at, place };
        receiving.arrivals.take(datagram.bytes, datagram.received, &*receiving.flow);
        self.peers.insert(datagram.from, Peer::Receiving(Box::new(receiving)));
        Some(())
    }

    fn check(&self, asked: &ClientHeader, peer: IpAddr) -> Result<(), String> {
        if let Some(foreign) = asked.foreign {
            return Err(format!("fathom does not do {foreign}"));
        }
        match asked.mode {
            TestMode::Forward => Ok(()),
            _ => self.state.check_back_datagrams(peer),
        }
    }

    /// Counts what is refused, and says why; a flood of requests is no flood of lines.
    fn refuse(&self, peer: IpAddr, why: String) {
        let error = Error::Refused { from: peer.to_string(), why };
        if self.state.may_remark() {
            self.table.failure(None, &error);
        }
        self.state.count(&Err(error));
    }

    /// Gives a new flow a place. On a full server the oldest flow of a single datagram makes room: its source may be forged.
    fn place(&mut self) -> Option<FlowPlace<'env>> {
        let state: &'env ServerState = self.state;
        let admitted = state
            .admit()
            .or_else(|why| if why == NotAdmitted::Full && self.evict() { state.admit() } else { Err(why) });
        if admitted.is_err() {
            state.reject();
        }
        admitted.ok()
    }

    /// Ends the oldest flow of a single datagram, without a line: such flows may come in a flood. Returns whether there was one.
    fn evict(&mut self) -> bool {
        let single = self.peers.iter().filter_map(|(from, peer)| match peer {
            Peer::Receiving(receiving) if receiving.n_datagrams < 2 => Some((receiving.arrivals.last_at, *from)),
            _ => None,
        });
        let oldest = single.min().map(|(_, from)| from);
        let evicted = oldest.and_then(|from| self.end(from));
        if evicted.is_some() {
            self.state.count(&Err(Error::Silent { seconds: 0 }));
        }
        evicted.is_some()
    }

    /// Remembers a sender without a flow of its own. Of too many, the one that would be forgotten first makes room.
    fn remember(&mut self, from: SocketAddr, peer: Peer<'env>) {
        let ends = || self.peers.iter().filter_map(|(from, peer)| Some((peer.until()?, *from)));
        let first = if ends().count() < self.state.options.flows_max { None } else { ends().min() };
        if let Some((_, first)) = first {
            self.peers.remove(&first);
        }
        self.peers.insert(from, peer);
    }

    fn info(
        &self,
        peer: SocketAddr,
        asked: &ClientHeader,
        (role, has_trip_times): (FlowRole, bool),
    ) -> Result<FlowInfo, Error> {
        let to = self.permit(peer)?;
        let local = SocketAddr::new(socket::source_towards(&to)?, self.state.address.port());
        Ok(FlowInfo {
            id: self.table.next_id(),
            group: self.state.group(peer.ip(), Some(asked), self.table),
            role,
            protocol: TransportProtocol::Udp,
            mode: asked.mode,
            is_back: role == FlowRole::Sender || self.state.options.is_back,
            local,
            remote: peer,
            has_trip_times,
            length: self.state.options.length.unwrap_or(UDP_LENGTH_V4),
            tos: asked.tos,
            peer_version: asked.version,
            facts: None,
            began: clock::wall(),
        })
    }

    fn permit(&self, peer: SocketAddr) -> Result<Destination, Error> {
        let refused = |refused: fathom_sys::policy::Refused| Error::Refused {
            from: peer.ip().to_string(),
            why: refused.to_string(),
        };
        self.state.options.policy.permit(peer).map_err(refused)
    }

    /// Ends the flow of a sender whose end mark has come; returns the report for it.
    fn finish(&mut self, from: SocketAddr) -> Option<Vec<u8>> {
        // Its place is free when its flow back has one, so that a server of one test does not end between the two.
        let ended = self.end(from)?;
        self.state.count(&Ok(()));
        let header = ended.header;
        let report = report(&ended.outcome, self.state.options.counts_calls || header.trip_start.is_some());
        let mut budget = ReplyBudget(ended.n_bytes);
        let answer = if header.has_no_fin { None } else { budget.spend(&report) };
        let is_wide = header.has_wide_numbers;
        self.remember(from, Peer::Answered { report, budget, is_wide, until: clock::now() + ANSWER_MAX });
        if header.mode == TestMode::Tradeoff {
            self.connect_back(canonical(from), header);
        }
        answer
    }

    /// Ends the flow of a sender, and forgets the sender.
    fn end(&mut self, from: SocketAddr) -> Option<EndedFlow<'env>> {
        let Some(Peer::Receiving(receiving)) = self.peers.remove(&from) else { return None };
        let ReceivingFlow { flow, arrivals, header, place, .. } = *receiving;
        let outcome = self.state.end(&flow, arrivals.last_at, self.table);
        Some(EndedFlow { outcome, n_bytes: arrivals.n_bytes, header, _place: place })
    }

    /// Ends the flow of a sender, and says why.
    fn fail(&mut self, from: SocketAddr, why: Error) {
        let Some(Peer::Receiving(receiving)) = self.peers.get(&from) else { return };
        let flow = receiving.flow.clone();
        self.end(from);
        self.table.failure(Some(&flow.info), &why);
        self.state.count(&Err(why));
    }

    /// Ends flows that are silent or too long, and forgets senders whose flow has ended.
    fn expire(&mut self, now: Nanos) {
        if now < self.next_expiry {
            return;
        }
        self.next_expiry = now + RECEIVE_TIMEOUT * 5;
        let time_max = self.state.options.time_max;
        let late: Vec<(SocketAddr, Error)> = self
            .peers
            .iter()
            .filter_map(|(from, peer)| match peer {
                Peer::Receiving(flow) if now - flow.arrivals.last_at > SILENT_MAX => {
                    Some((*from, Error::Silent { seconds: SILENT_MAX.0 / 1_000_000_000 }))
                }
                Peer::Receiving(flow) if now >= flow.ends_at => {
                    Some((*from, Error::TooLong { seconds: time_max.0 / 1_000_000_000 }))
                }
                _ => None,
            })
            .collect();
        for (from, why) in late {
            self.fail(from, why);
        }
        for peer in self.peers.values_mut() {
            // Requests that are still on their way do not ask for another flow.
            if matches!(peer, Peer::Sending(place) if place.strong_count() == 0) {
                *peer = Peer::Ignored { until: now + REQUESTS_MAX };
            }
        }
        self.peers.retain(|_, peer| peer.until().is_none_or(|until| until > now));
    }

    fn end_all(&mut self) {
        let peers: Vec<SocketAddr> = self.peers.keys().copied().collect();
        for from in peers {
            self.fail(from, Error::Interrupted);
        }
    }

    /// Sends from the server's port to a client that asked for it (`-R`) and may be sent to.
    fn send_back(&mut self, from: SocketAddr, peer: SocketAddr, asked: ClientHeader, place: FlowPlace<'env>) {
        let (state, table) = (self.state, self.table);
        let opened = self.info(peer, &asked, (FlowRole::Sender, asked.trip_start.is_some())).and_then(|info| {
            let to = self.permit(from)?;
            let socket = same_port(self.state, &to)?;
            self.strays.extend(strays(&socket));
            Ok((info, socket))
        });
        let place = Arc::new(place);
        self.remember(from, Peer::Sending(Arc::downgrade(&place)));
        let send = move || {
            let _place = place;
            let outcome = opened.and_then(|(info, socket)| send(socket, info, &asked, (state, table), false));
            state.count(&outcome);
        };
        // Without a thread nothing is sent, and the client says so.
        let _ = threads::start_within(self.scope, "flow", send);
    }

    /// Sends from a port of its own to the port that a client named (`-d`, `-r`).
    fn connect_back(&self, peer: SocketAddr, asked: ClientHeader) {
        let (state, table) = (self.state, self.table);
        let Some(place) = state.admit_back() else {
            return self.refuse(peer.ip(), "this server sends to as many clients as it takes".to_owned());
        };
        let to = SocketAddr::new(peer.ip(), asked.port);
        let asked = ClientHeader { n_flows: 1, ..asked };
        let opened = self.info(to, &asked, (FlowRole::Sender, false)).and_then(|info| {
            let socket = socket::datagram_unbound(to)?;
            socket::associate(&socket, &self.permit(to)?)?;
            Ok((info, socket))
        });
        let send = move || {
            let _place = place;
            let outcome = opened.and_then(|(info, socket)| send(socket, info, &asked, (state, table), true));
            state.count(&outcome);
        };
        let _ = threads::start_within(self.scope, "way-back", send);
    }
}

/// Sends a flow of datagrams with its end marks; the report of the other side is asked for if it is a server of its own.
fn send(
    socket: Socket,
    mut info: FlowInfo,
    asked: &ClientHeader,
    (state, table): (&ServerState, &FlowTable<'_>),
    asks_for_report: bool,
) -> Result<(), Error> {
    socket_setup::prepare(&socket)?;
    if let Ok((local, _)) = addresses(&socket) {
        info.local = local;
    }
    let plan = back_plan(asked, TransportProtocol::Udp, UDP_LENGTH_V4);
    let plan = data::FlowPlan {
        length: plan.length.min(UDP_LENGTH_MAX),
        header: asked.trip_start.map(|_| ClientHeader {
            mode: TestMode::Forward,
            trip_start: Some(clock::wall()),
            ..*asked
        }),
        ..plan
    };
    let socket = Arc::new(socket);
    let flow = table.add(info, None, back_times(asked, state.options.time_max));
    state.begin(&flow);
    let sent = data::send_datagrams(&socket, &plan, &*flow);
    let at = clock::now();
    let outcome = sent.map_err(|error| Error::Write { cause: error.source }).and_then(|mut sent| {
        data::FlowContext::add(&*flow, FlowCounter::Datagrams, 1);
        data::FlowContext::add(&*flow, FlowCounter::Bytes, sent.template.len() as u64);
        if asks_for_report {
            return request_report(&socket, &mut sent.template, sent.n + 1).map(Some);
        }
        mark_end(&socket, &mut sent.template, sent.n + 1);
        Ok(None)
    });
    state.end(&flow, at, table);
    match outcome {
        Ok(report) => {
            if let Some(report) = report {
                table.server_report(&flow.info, &report);
                // Repeated reports would be refused by a closed port, which iperf reports as a failure.
                clock::sleep_until(clock::now() + LINGER);
            }
            Ok(())
        }
        Err(error) => {
            table.failure(Some(&flow.info), &error);
            Err(error)
        }
    }
}

fn mark_end(socket: &Socket, datagram: &mut [u8], number: u64) {
    for n in 0..END_MARKS {
        DatagramNumber { number: number + n, is_end: true }.write(datagram);
        put_sent_time(datagram, clock::wall());
        // The client may have closed its socket at the first one.
        if socket::send(socket, datagram, Wait::Block).is_err() {
            return;
        }
        clock::sleep_until(clock::now() + END_MARK_EVERY);
    }
}

/// Opens a socket with the server's port, connected to one client: the kernel tells it when nobody listens there any more.
///
/// Until it is connected, the kernel gives the datagrams of other clients to the server's first socket (`set_first_of_port`).
fn same_port(state: &ServerState, to: &Destination) -> Result<Socket, Error> {
    let listen = |cause| Error::Listen { cause };
    let socket = open_dual_stack(state.address, Type::DGRAM).map_err(listen)?;
    state.options.guests.guard(&socket)?;
    socket.set_reuse_port(true).map_err(listen)?;
    socket.bind(&state.address.into()).map_err(listen)?;
    socket::associate(&socket, to)?;
    Ok(socket)
}

/// Takes what came to a socket before it was connected: a lookup of the kernel may find it in the moment in which it gets its port.
fn strays(socket: &Socket) -> Vec<(Vec<u8>, Sender)> {
    let mut room = vec![0; UDP_LENGTH_MAX];
    let mut strays = Vec::new();
    while let Ok(Some((length, sender))) = socket::recv_from(socket, &mut room, Wait::Never) {
        strays.push((room[..length].to_vec(), sender));
    }
    strays
}

/// Returns the report on a flow.
fn report(outcome: &FlowOutcome, has_times: bool) -> ServerReport {
    let counts = &outcome.counts;
    let span = outcome.span.as_secs_f64();
    let per_sec = if span > 0.0 { rounded(approximate(counts.datagrams) / span) } else { 0 };
    ServerReport {
        bytes: counts.bytes,
        span: outcome.span,
        lost: counts.lost(),
        reordered: counts.reordered,
        datagrams: counts.datagrams,
        jitter: counts.jitter,
        transit: counts.transit.filter(|_| has_times),
        per_sec: has_times.then(|| u32::try_from(per_sec).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use super::{super::ServerOptions, *};
    use crate::iperf2::{FlowObserver, REPORT_LEN, REPORT_SHORT_LEN};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Counts what was said of failures.
    #[derive(Default)]
    struct Remarks(AtomicU64);

    impl FlowObserver for Remarks {
        fn on_failure(&self, _: Option<&FlowInfo>, _: &Error) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands datagrams to a server; returns the number of remarks.
    fn serving(options: ServerOptions, act: impl FnOnce(&mut DatagramServer<'_, '_, '_>)) -> u64 {
        let state = ServerState::new(options, SocketAddr::new(HERE, 5001));
        let remarks = Remarks::default();
        let table = FlowTable::new(&remarks, None);
        thread::scope(|scope| {
            let (state, table) = (&state, &table);
            let mut server = DatagramServer {
                scope,
                state,
                table,
                peers: HashMap::new(),
                strays: Vec::new(),
                next_expiry: Nanos::ZERO,
            };
            act(&mut server);
            state.stop();
        });
        remarks.0.into_inner()
    }

    impl DatagramServer<'_, '_, '_> {
        /// Takes a datagram of a client at a port of this host.
        fn take_from(&mut self, port: u16, bytes: &[u8]) -> Option<Vec<u8>> {
            self.take(&Datagram { bytes, received: None, from: SocketAddr::new(HERE, port) })
        }

        fn n_receiving(&self) -> usize {
            self.peers.values().filter(|peer| matches!(peer, Peer::Receiving(_))).count()
        }
    }

    fn datagram(header: Option<ClientHeader>, number: u64, is_end: bool) -> Vec<u8> {
        let mut bytes = vec![0; 200];
        if let Some(header) = header {
            header.write_datagram(&mut bytes);
        }
        DatagramNumber { number, is_end }.write(&mut bytes);
        bytes
    }

    fn asking(mode: TestMode) -> ClientHeader {
        ClientHeader { mode, n_flows: 1, port: 5002, is_extended: true, ..ClientHeader::default() }
    }

    #[test]
    fn a_stranger_ends_no_flow_of_a_client() {
        let is_client_allowed: Option<crate::ClientFilter> = Some(Arc::new(|address| address == HERE));
        let remarks =
            serving(ServerOptions { is_client_allowed, flows_max: 1, ..ServerOptions::default() }, |server| {
                server.take_from(1000, &datagram(None, 1, false));
                let from = SocketAddr::from(([127, 0, 0, 2], 1000));
                server.take(&Datagram {
                    bytes: &datagram(Some(asking(TestMode::Reverse)), 1, false),
                    received: None,
                    from,
                });
                server.take(&Datagram { bytes: &datagram(None, 1, false), received: None, from });
                assert_eq!((server.n_receiving(), server.peers.len()), (1, 1));
                assert_eq!(server.state.totals().rejected, 2);
            });
        assert_eq!(remarks, 0);
        let limited = ServerOptions { tests: Some(1), ..ServerOptions::default() };
        serving(limited, |server| {
            server.take_from(1000, &datagram(None, 1, false));
            server.take_from(1001, &datagram(None, 1, false));
            assert!(server.peers.contains_key(&SocketAddr::new(HERE, 1000)), "the second came too late");
        });
    }

    #[test]
    fn a_flood_of_single_datagrams_is_no_flood_of_lines() {
        let remarks = serving(ServerOptions { flows_max: 4, ..ServerOptions::default() }, |server| {
            for port in 1000..1100 {
                server.take_from(port, &datagram(None, 1, false));
            }
            assert_eq!((server.n_receiving(), server.state.totals().failed), (4, 96));
        });
        assert_eq!(remarks, 0);
    }

    #[test]
    fn a_server_sends_back_to_as_many_clients_as_it_takes() {
        let remarks = serving(ServerOptions { flows_max: 1, ..ServerOptions::default() }, |server| {
            let _other = server.state.admit_back().unwrap();
            for mode in [TestMode::Tradeoff, TestMode::Dual] {
                server.take_from(1000, &datagram(Some(asking(mode)), 1, false));
                server.take_from(1000, &datagram(Some(asking(mode)), 2, true));
            }
            let totals = server.state.totals();
            assert_eq!((totals.finished, totals.failed), (2, 2), "both came, and neither got a flow back");
        });
        assert_eq!(remarks, 1, "the second one within a second is only counted");
    }

    #[test]
    fn clients_with_32_bit_numbers_get_a_lost_report_again() {
        serving(ServerOptions::default(), |server| {
            // Nothing is where others have the upper half of the number.
            let old = |number: i32| [&number.to_be_bytes()[..], &[0; 196]].concat();
            server.take_from(1000, &old(1));
            assert!(server.take_from(1000, &old(-2)).is_some());
            assert!(server.take_from(1000, &old(-2)).is_some());
        });
    }

    #[test]
    fn what_a_server_remembers_of_senders_is_bounded() {
        serving(ServerOptions { flows_max: 4, ..ServerOptions::default() }, |server| {
            for port in 1000..1100 {
                server.take_from(port, &datagram(None, 1, false));
                assert!(server.take_from(port, &datagram(None, 2, true)).is_some());
            }
            assert_eq!(server.peers.len(), 4);
            assert!(server.peers.contains_key(&SocketAddr::new(HERE, 1099)), "the last ones");
        });
    }

    #[test]
    fn a_client_whose_flow_failed_may_ask_again() {
        serving(ServerOptions::default(), |server| {
            let from = SocketAddr::new(HERE, 1000);
            let place = Arc::new(server.state.admit().ok().unwrap());
            server.remember(from, Peer::Sending(Arc::downgrade(&place)));
            server.expire(Nanos::from_secs(5));
            assert!(matches!(server.peers.get(&from), Some(Peer::Sending(_))), "it is being sent to");
            drop(place);
            server.expire(Nanos::from_secs(6));
            assert!(matches!(server.peers.get(&from), Some(Peer::Ignored { .. })), "requests may be on their way");
            server.expire(Nanos::from_secs(8));
            assert!(server.peers.is_empty());
        });
    }

    #[test]
    fn a_source_gets_no_more_bytes_than_it_sent() {
        let report = ServerReport::default();
        let mut budget = ReplyBudget(REPORT_SHORT_LEN as u64 - 1);
        assert_eq!(budget.spend(&report), None);
        budget.received(1);
        assert_eq!(budget.spend(&report).map(|bytes| bytes.len()), Some(REPORT_SHORT_LEN));
        assert_eq!(budget.spend(&report), None, "each byte answers one byte");
        budget.received(1470);
        assert_eq!(budget.spend(&report).map(|bytes| bytes.len()), Some(REPORT_LEN));
        assert_eq!(budget, ReplyBudget(1470 - REPORT_LEN as u64));
    }
}
