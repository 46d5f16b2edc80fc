//! The datagrams of all clients at one socket.
//!
//! Anybody can forge the source of a datagram. So nothing is sent to a source but its report, and in all no more bytes than came from
//! it; more is sent only where [`BackTraffic`](super::BackTraffic) allows it. A flow of a single datagram makes room for others.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread::Scope,
};

use fathom_model::units::{Nanos, approximate, rounded};
use fathom_sys::{
    clock,
    policy::Destination,
    process::threads,
    socket::{
        self, Domain, Protocol, Socket, Type, Wait,
        datagram::{BatchShape, ReceiveBatch},
    },
};

use super::{
    connection::{age_of, back_plan, back_times},
    state::{FlowPlace, ServerState},
};
use crate::iperf2::{
    ClientHeader, DatagramNumber, Error, FlowInfo, FlowOutcome, FlowRole, FlowTable, ServerReport, TestMode,
    TransportProtocol, UDP_LENGTH_MAX, UDP_LENGTH_V4,
    client::request_report,
    data::{self, Arrivals, FlowCounter},
    flow_table::{FlowTimes, RunningFlow},
    put_sent_time, read_datagram, socket_setup,
};

/// Datagrams per receive call.
const BATCH: usize = 32;
/// How long a call waits before it looks for the end.
const RECEIVE_TIMEOUT: Nanos = Nanos::from_millis(20);
/// How long a flow may be silent without its end mark.
const SILENT_MAX: Nanos = Nanos::from_secs(10);
/// How long end marks are answered after the first one, and late datagrams belong to the flow that has ended.
const ANSWER_MAX: Nanos = Nanos::from_secs(3);
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
        until: Nanos,
    },
    /// It was refused, or it is being sent to; what it says is ignored until this time.
    Ignored {
        until: Nanos,
    },
}

struct ReceivingFlow<'s> {
    flow: Arc<RunningFlow>,
    arrivals: Arrivals,
    header: ClientHeader,
    n_datagrams: u64,
    ends_at: Nanos,
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
    let mut desk = DatagramServer { scope, state, table, peers: HashMap::new(), next_expiry: Nanos::ZERO };
    while !state.is_over() {
        // The refusal of an earlier report does not affect the next datagram.
        let n = batch.receive(socket, Wait::Block).ok().flatten().unwrap_or(0);
        for index in 0..n {
            let Some(from) = batch.source_of(index) else { continue };
            let sender = batch.sender(index);
            let arrived = Datagram { bytes: batch.payload(index), received: batch.kernel_time(index), from };
            if let (Some(answer), Some(sender)) = (desk.take(&arrived), sender) {
                // The client asks again if a report is lost.
                let _ = socket::send_to(socket, &answer, &sender, Wait::Never);
            }
        }
        desk.expire(clock::now());
    }
    desk.end_all();
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
            Some(Peer::Answered { report, budget, .. }) => {
                budget.received(length);
                let number = DatagramNumber::read(datagram.bytes, true)?;
                if number.is_end {
                    return budget.spend(report);
                }
                // A client may begin again from the same port.
                if number.number <= 1 { self.open(datagram) } else { None }
            }
            Some(Peer::Ignored { .. }) => None,
            None => self.open(datagram),
        }
    }

    /// Begins the flow of a new sender.
    fn open(&mut self, datagram: &Datagram<'_>) -> Option<Vec<u8>> {
        let first = DatagramNumber::read(datagram.bytes, false).filter(|number| !number.is_end);
        first?;
        let header = if self.state.options.is_back { None } else { read_datagram(datagram.bytes) };
        let peer = socket_setup::canonical(datagram.from);
        let asked =
            header.unwrap_or(ClientHeader { has_wide_numbers: self.state.options.is_back, ..ClientHeader::default() });
        if let Err(why) = self.check(&asked, peer.ip()) {
            self.refuse(datagram.from, peer.ip(), why);
            return None;
        }
        let place = self.place(peer.ip())?;
        if asked.mode == TestMode::Reverse {
            self.send_back(datagram.from, peer, asked, Some(place));
            return None;
        }
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
        let mut receiving = ReceivingFlow { flow, arrivals, header: asked, n_datagrams: 1, ends_at, _place: place };
        receiving.arrivals.take(datagram.bytes, datagram.received, &*receiving.flow);
        self.peers.insert(datagram.from, Peer::Receiving(Box::new(receiving)));
        if asked.mode == TestMode::Dual {
            self.connect_back(peer, asked);
        }
        None
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

    /// Ignores a sender for a while, and says why; a flood of them is no flood of lines.
    fn refuse(&mut self, from: SocketAddr, peer: IpAddr, why: String) {
        if self.peers.len() < self.state.options.flows_max {
            self.peers.insert(from, Peer::Ignored { until: clock::now() + ANSWER_MAX });
        }
        let error = Error::Refused { from: peer.to_string(), why };
        if self.state.may_remark() {
            self.table.failure(None, &error);
        }
        self.state.count(&Err(error));
    }

    /// Gives a new flow a place. If there is none, the oldest flow of a single datagram makes room: its source may be forged.
    fn place(&mut self, peer: IpAddr) -> Option<FlowPlace<'env>> {
        let state: &'env ServerState = self.state;
        state.admit(peer).or_else(|| {
            let single = self.peers.iter().filter_map(|(from, peer)| match peer {
                Peer::Receiving(receiving) if receiving.n_datagrams < 2 => Some((receiving.arrivals.last_at, *from)),
                _ => None,
            });
            let (_, oldest) = single.min()?;
            self.end(oldest, Some(Error::Silent { seconds: 0 }));
            self.peers.remove(&oldest);
            state.admit(peer)
        })
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
        let (outcome, n_bytes, header) = self.end(from, None)?;
        let report = report(&outcome, self.state.options.counts_calls || header.trip_start.is_some());
        let mut budget = ReplyBudget(n_bytes);
        let answer = if header.has_no_fin { None } else { budget.spend(&report) };
        self.peers.insert(from, Peer::Answered { report, budget, until: clock::now() + ANSWER_MAX });
        if header.mode == TestMode::Tradeoff {
            self.connect_back(socket_setup::canonical(from), header);
        }
        answer
    }

    /// Ends the flow of a sender, and forgets the sender.
    fn end(&mut self, from: SocketAddr, why: Option<Error>) -> Option<(FlowOutcome, u64, ClientHeader)> {
        let Some(Peer::Receiving(receiving)) = self.peers.remove(&from) else { return None };
        let outcome = self.state.end(&receiving.flow, receiving.arrivals.last_at, self.table);
        if let Some(error) = &why {
            self.table.failure(Some(&receiving.flow.info), error);
        }
        self.state.count(&why.map_or(Ok(()), Err));
        Some((outcome, receiving.arrivals.n_bytes, receiving.header))
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
            self.end(from, Some(why));
        }
        self.peers.retain(|_, peer| match peer {
            Peer::Receiving(_) => true,
            Peer::Answered { until, .. } | Peer::Ignored { until } => *until > now,
        });
    }

    fn end_all(&mut self) {
        let peers: Vec<SocketAddr> = self.peers.keys().copied().collect();
        for from in peers {
            self.end(from, Some(Error::Interrupted));
        }
    }

    /// Sends from the server's port to a client that asked for it (`-R`) and may be sent to.
    fn send_back(&mut self, from: SocketAddr, peer: SocketAddr, asked: ClientHeader, place: Option<FlowPlace<'env>>) {
        let (state, table) = (self.state, self.table);
        let opened = self.info(peer, &asked, (FlowRole::Sender, asked.trip_start.is_some())).and_then(|info| {
            let to = self.permit(from)?;
            Ok((info, same_port(self.state.address, &to)?))
        });
        let times = back_times(&asked, state.options.time_max);
        self.peers.insert(from, Peer::Ignored { until: times.ends_at + ANSWER_MAX });
        let send = move || {
            let _place = place;
            let outcome = opened.and_then(|(info, socket)| send(socket, info, &asked, (state, table), false));
            state.count(&outcome);
        };
        // Without a thread nothing is sent, and the client says so.
        let _ = threads::start_within(self.scope, send);
    }

    /// Sends from a port of its own to the port that a client named (`-d`, `-r`).
    fn connect_back(&self, peer: SocketAddr, asked: ClientHeader) {
        let (state, table) = (self.state, self.table);
        let to = SocketAddr::new(peer.ip(), asked.port);
        let asked = ClientHeader { n_flows: 1, ..asked };
        let opened = self.info(to, &asked, (FlowRole::Sender, false)).and_then(|info| {
            let socket = socket::datagram_unbound(to)?;
            socket::associate(&socket, &self.permit(to)?)?;
            Ok((info, socket))
        });
        let send = move || {
            let outcome = opened.and_then(|(info, socket)| send(socket, info, &asked, (state, table), true));
            state.count(&outcome);
        };
        let _ = threads::start_within(self.scope, send);
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
    if let Ok((local, _)) = socket_setup::addresses(&socket) {
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

/// Opens a socket with the server's port, connected to one client.
fn same_port(address: SocketAddr, to: &Destination) -> Result<Socket, Error> {
    let listen = |cause| Error::Listen { cause };
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).map_err(listen)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified()).map_err(listen)?;
    }
    socket.set_reuse_address(true).map_err(listen)?;
    socket.bind(&address.into()).map_err(listen)?;
    socket::associate(&socket, to)?;
    Ok(socket)
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
    use super::*;
    use crate::iperf2::{REPORT_LEN, REPORT_SHORT_LEN};

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
