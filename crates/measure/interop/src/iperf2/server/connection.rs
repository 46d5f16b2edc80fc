//! One connection of a client, from its header to its end.

use std::{
    cell::Cell,
    net::{IpAddr, Shutdown, SocketAddr},
    sync::Arc,
    thread,
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::threads,
    socket::{self, Socket, Wait, socket_options},
};

use super::{
    options::BackTraffic,
    state::{FlowPlace, ServerState},
};
use crate::{
    iperf2::{
        AckTimes, ClientHeader, ConnectionFacts, Error, FlowInfo, FlowRole, FlowTable, HeaderLen, ServerAck,
        TCP_LENGTH, TestAmount, TestMode, TransportProtocol,
        client::{await_close, send_whole},
        data::{self, FlowContext, FlowCounter, FlowPlan, burst_length},
        flow_table::{FlowTimes, RunningFlow},
        header_len, socket_setup,
    },
    sockets::addresses,
};

/// How long a connection may take to send its header.
const HEADER_MAX_WAIT: Nanos = Nanos::from_secs(10);
/// How long a client may send nothing, and how long it may be silent before the kernel probes it.
const IDLE_MAX: Nanos = Nanos::from_secs(60);
const KEEPALIVE: Nanos = Nanos::from_secs(30);
/// The timeout of a connection to a client that asked for it.
const CONNECT_MAX: Nanos = Nanos::from_secs(5);
/// The longest write that a client may ask for.
const LENGTH_MAX: u32 = 4 << 20;
/// The oldest start time that is taken for the client's (`MAXDIFFTIMESTAMPSECS`).
const START_AGE_MAX: Nanos = Nanos::from_secs(600);

/// A new connection.
pub(super) struct Accepted<'s> {
    pub(super) socket: Arc<Socket>,
    /// When it was accepted, on the monotonic clock.
    pub(super) at: Nanos,
    /// The same on the wall clock.
    pub(super) wall: Nanos,
    pub(super) place: FlowPlace<'s>,
}

/// What a client wants, and the bytes that were read for it.
struct Request {
    header: Option<ClientHeader>,
    first_bytes: usize,
}

/// Serves a connection to its end.
pub(super) fn serve(accepted: Accepted<'_>, peer: SocketAddr, state: &ServerState, table: &FlowTable<'_>) {
    let outcome = match read_request(&accepted, state) {
        Ok(Some(request)) => run(&accepted, peer, &request, state, table),
        Ok(None) => {
            state.discount();
            return;
        }
        Err(error) => Err((None, error)),
    };
    let outcome = outcome.map_err(|(flow, error)| {
        table.failure(flow.as_deref(), &error);
        error
    });
    state.count(&outcome);
    drop(accepted.place);
}

/// The flow that failed, if one was open, and why.
type FlowResult = Result<(), (Option<Box<FlowInfo>>, Error)>;

/// Prepares a connection for its thread. The kernel ends it when its client has vanished.
fn prepare(socket: &Socket) -> Result<(), Error> {
    socket_setup::prepare(socket)?;
    Ok(socket_options::set_keepalive(socket, KEEPALIVE)?)
}

/// Reads the header; `None` if the connection ends without a byte, as one that only tries the port does.
fn read_request(accepted: &Accepted<'_>, state: &ServerState) -> Result<Option<Request>, Error> {
    prepare(&accepted.socket)?;
    if state.options.is_back {
        return Ok(Some(Request { header: None, first_bytes: 0 }));
    }
    let mut first = [0; 4];
    match fill(&accepted.socket, &mut first, state)? {
        0 => return Ok(None),
        4 => {}
        count => return Ok(Some(Request { header: None, first_bytes: count })),
    }
    let length = match header_len(first) {
        HeaderLen::None => return Ok(Some(Request { header: None, first_bytes: first.len() })),
        HeaderLen::Invalid => return Ok(None),
        HeaderLen::Bytes(length) => length,
    };
    let mut bytes = vec![0; length];
    bytes[..first.len()].copy_from_slice(&first);
    let count = fill(&accepted.socket, &mut bytes[first.len()..], state)?;
    let header = ClientHeader::read_stream(&bytes[..first.len() + count]).filter(|_| first.len() + count == length);
    Ok(Some(Request { header, first_bytes: first.len() + count }))
}

/// Reads until the room is full; returns how much came before the end of the connection.
fn fill(socket: &Socket, room: &mut [u8], state: &ServerState) -> Result<usize, Error> {
    let deadline = clock::now() + HEADER_MAX_WAIT;
    let mut n = 0;
    while n < room.len() {
        match socket::recv(socket, &mut room[n..], Wait::Block) {
            Ok(Some(0)) => break,
            Ok(Some(count)) => n += count,
            Ok(None) if state.is_over() => return Err(Error::Interrupted),
            Ok(None) if clock::now() < deadline => {}
            Ok(None) => return Err(Error::Silent { seconds: HEADER_MAX_WAIT.0 / 1_000_000_000 }),
            Err(error) => return Err(Error::Read { cause: error.source }),
        }
    }
    Ok(n)
}

fn run(
    accepted: &Accepted<'_>,
    peer: SocketAddr,
    request: &Request,
    state: &ServerState,
    table: &FlowTable<'_>,
) -> FlowResult {
    let without_flow = |error| (None, error);
    let refused = |why: String| (None, Error::Refused { from: peer.ip().to_string(), why });
    let header = request.header.unwrap_or_default();
    if let Some(foreign) = header.foreign {
        return Err(refused(format!("fathom does not do {foreign}")));
    }
    if header.mode != TestMode::Forward && matches!(state.options.back_traffic, BackTraffic::Never) {
        return Err(refused("this server sends nothing".to_owned()));
    }
    if request.header.is_some() {
        state.prove(peer.ip());
    }
    if header.is_extended && (header.mode != TestMode::Reverse || header.detects_peer) {
        acknowledge(accepted, &header).map_err(without_flow)?;
    }
    let setup = socket_setup::SocketSetup { tos: header.tos, ..Default::default() };
    setup.apply(&accepted.socket, TransportProtocol::Tcp).map_err(without_flow)?;
    match header.mode {
        TestMode::Reverse => send_back(accepted, &header, state, table),
        TestMode::Dual => {
            let receiving = Receiving::begin(accepted, request, state, table).map_err(without_flow)?;
            thread::scope(|scope| {
                let back = threads::start_within(scope, "way-back", || connect_back(peer, &header, state, table));
                let received = receiving.run(state, table);
                let back = back.map_err(|error| without_flow(error.into()))?;
                received.and(back.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        }
        TestMode::Tradeoff => {
            Receiving::begin(accepted, request, state, table).map_err(without_flow)?.run(state, table)?;
            connect_back(peer, &header, state, table)
        }
        TestMode::Forward | TestMode::FullDuplex => {
            Receiving::begin(accepted, request, state, table).map_err(without_flow)?.run(state, table)
        }
    }
}

fn acknowledge(accepted: &Accepted<'_>, header: &ClientHeader) -> Result<(), Error> {
    let times = header.trip_start.map(|sent| AckTimes { sent, accepted: accepted.wall, acknowledged: clock::wall() });
    send_whole(&accepted.socket, &ServerAck::of(times).write()).map_err(|cause| Error::Write { cause })
}

/// Returns the description of a flow over a connection.
fn info(
    socket: &Socket,
    header: Option<&ClientHeader>,
    role: FlowRole,
    state: &ServerState,
    table: &FlowTable<'_>,
) -> Result<FlowInfo, Error> {
    let (local, remote) = addresses(socket)?;
    let group = state.group(remote.ip(), header, table);
    let header = header.copied().unwrap_or_default();
    Ok(FlowInfo {
        id: table.next_id(),
        group,
        role,
        protocol: TransportProtocol::Tcp,
        mode: header.mode,
        is_back: role == FlowRole::Sender || state.options.is_back,
        local,
        remote,
        has_trip_times: header.trip_start.is_some(),
        length: state.options.length.unwrap_or(TCP_LENGTH),
        tos: header.tos,
        peer_version: header.version,
        facts: ConnectionFacts::of(socket, None),
        began: clock::wall(),
    })
}

/// A flow from a client.
struct Receiving<'a> {
    accepted: &'a Accepted<'a>,
    flow: Arc<RunningFlow>,
    plan: FlowPlan,
    times: FlowTimes,
}

impl<'a> Receiving<'a> {
    /// Begins a flow with the bytes that were read for its header.
    fn begin(
        accepted: &'a Accepted<'a>,
        request: &Request,
        state: &ServerState,
        table: &FlowTable<'_>,
    ) -> Result<Self, Error> {
        let header = request.header.as_ref();
        let mut info = info(&accepted.socket, header, FlowRole::Receiver, state, table)?;
        // A clock that is far off says nothing of times.
        let age = header.and_then(|header| header.trip_start).and_then(|start| age_of(start, accepted.wall));
        info.has_trip_times = age.is_some();
        let plan = FlowPlan {
            protocol: TransportProtocol::Tcp,
            role: FlowRole::Receiver,
            length: info.length,
            rate: None,
            budget: None,
            has_trip_times: info.has_trip_times,
            counts_calls: state.options.counts_calls || info.has_trip_times,
            header: None,
        };
        let start = accepted.at - age.unwrap_or_default();
        let times = FlowTimes { start, ends_at: accepted.at + state.options.time_max };
        let flow = table.add(info, Some(accepted.socket.clone()), times);
        state.begin(&flow);
        if request.first_bytes > 0 {
            let first_bytes = request.first_bytes as u64;
            flow.add(FlowCounter::Bytes, first_bytes);
            flow.add(FlowCounter::Calls, 1);
            flow.add_read(first_bytes);
        }
        Ok(Self { accepted, flow, plan, times })
    }

    /// Receives to the end, and closes the connection.
    fn run(self, state: &ServerState, table: &FlowTable<'_>) -> FlowResult {
        let Self { accepted, flow, plan, times } = self;
        let watched = WatchedFlow::new(&flow, IDLE_MAX);
        let received = data::receive_stream(&accepted.socket, &plan, &watched);
        state.end(&flow, clock::now(), table);
        // The client waits for this end. It may be gone already.
        let _ = accepted.socket.shutdown(Shutdown::Both);
        let info = || Some(Box::new(flow.info.clone()));
        received.map_err(|error| (info(), Error::Read { cause: error.source }))?;
        if watched.is_idle.get() {
            return Err((info(), Error::Silent { seconds: IDLE_MAX.0 / 1_000_000_000 }));
        }
        end_reason(&flow, times, state).map_or(Ok(()), |error| Err((info(), error)))
    }
}

/// A flow that also ends when nothing has come for a while.
struct WatchedFlow<'a> {
    flow: &'a RunningFlow,
    idle_max: Nanos,
    /// Since when nothing has come; `None` if something has come since the last look.
    silent_since: Cell<Option<Nanos>>,
    is_idle: Cell<bool>,
}

impl<'a> WatchedFlow<'a> {
    fn new(flow: &'a RunningFlow, idle_max: Nanos) -> Self {
        Self { flow, idle_max, silent_since: Cell::new(None), is_idle: Cell::new(false) }
    }
}

impl FlowContext for WatchedFlow<'_> {
    fn add(&self, counter: FlowCounter, amount: u64) {
        if counter == FlowCounter::Bytes {
            self.silent_since.set(None);
        }
        self.flow.add(counter, amount);
    }

    fn add_read(&self, bytes: u64) {
        self.flow.add_read(bytes);
    }

    fn add_transit(&self, transit: Nanos) {
        self.flow.add_transit(transit);
    }

    fn is_over(&self) -> bool {
        let now = clock::now();
        let since = self.silent_since.get().unwrap_or(now);
        self.silent_since.set(Some(since));
        self.is_idle.set(now - since > self.idle_max);
        self.is_idle.get() || self.flow.is_over_at(now)
    }

    fn start(&self) -> Nanos {
        self.flow.start()
    }
}

/// Returns how long ago a client began; `None` if its clock is far off.
pub(super) fn age_of(start: Nanos, now: Nanos) -> Option<Nanos> {
    let is_near = now.since(start) <= START_AGE_MAX && start.since(now) <= START_AGE_MAX;
    is_near.then(|| now.since(start))
}

/// Why a flow ended before its client ended it.
fn end_reason(flow: &RunningFlow, times: FlowTimes, state: &ServerState) -> Option<Error> {
    if flow.is_stopped() {
        return Some(Error::Interrupted);
    }
    let is_late = clock::now() >= times.ends_at;
    is_late.then_some(Error::TooLong { seconds: state.options.time_max.0 / 1_000_000_000 })
}

/// What a server sends, as a client asked for it.
pub(super) fn back_plan(header: &ClientHeader, protocol: TransportProtocol, default: usize) -> FlowPlan {
    let length = header.length.filter(|length| *length <= LENGTH_MAX).and_then(|length| usize::try_from(length).ok());
    let length = length.unwrap_or(default);
    let has_trip_times = header.trip_start.is_some();
    FlowPlan {
        protocol,
        role: FlowRole::Sender,
        length: if protocol == TransportProtocol::Tcp && has_trip_times { burst_length(length) } else { length },
        rate: header.rate,
        budget: match header.amount {
            TestAmount::Bytes(bytes) => Some(bytes),
            TestAmount::Time(_) => None,
        },
        has_trip_times,
        counts_calls: false,
        header: None,
    }
}

/// The times of a flow that a server sends.
pub(super) fn back_times(header: &ClientHeader, time_max: Nanos) -> FlowTimes {
    let start = clock::now();
    let span = match header.amount {
        TestAmount::Time(span) => span.min(time_max),
        TestAmount::Bytes(_) => time_max,
    };
    FlowTimes { start, ends_at: start + span }
}

/// Sends over the client's own connection (`-R`).
fn send_back(accepted: &Accepted<'_>, header: &ClientHeader, state: &ServerState, table: &FlowTable<'_>) -> FlowResult {
    let info = info(&accepted.socket, Some(header), FlowRole::Sender, state, table).map_err(|error| (None, error))?;
    send(&accepted.socket, info, header, state, table)
}

/// Connects to a client that asked for it, and sends (`-d`, `-r`). Its address has completed a handshake.
fn connect_back(peer: SocketAddr, header: &ClientHeader, state: &ServerState, table: &FlowTable<'_>) -> FlowResult {
    let without_flow = |error| (None, error);
    let socket = connect_to(peer.ip(), header.port, state).map_err(without_flow)?;
    let header = ClientHeader { n_flows: 1, ..*header };
    let info = info(&socket, Some(&header), FlowRole::Sender, state, table).map_err(without_flow)?;
    send(&Arc::new(socket), info, &header, state, table)
}

fn connect_to(peer: IpAddr, port: u16, state: &ServerState) -> Result<Socket, Error> {
    let failed = |cause| Error::Connect { call: "tcp connect", cause };
    let to = SocketAddr::new(peer, port);
    let permitted = state.options.policy.permit(to);
    let to = permitted.map_err(|refused| Error::Refused { from: peer.to_string(), why: refused.to_string() })?;
    let socket = socket::stream(SocketAddr::new(peer, port))?;
    socket::connect(&socket, &to, CONNECT_MAX).map_err(|error| failed(error.source))?;
    prepare(&socket)?;
    Ok(socket)
}

fn send(
    socket: &Arc<Socket>,
    info: FlowInfo,
    header: &ClientHeader,
    state: &ServerState,
    table: &FlowTable<'_>,
) -> FlowResult {
    let plan = back_plan(header, TransportProtocol::Tcp, state.options.length.unwrap_or(TCP_LENGTH));
    let flow = table.add(info, Some(socket.clone()), back_times(header, state.options.time_max));
    state.begin(&flow);
    let sent = begin_times(socket, header, &flow)
        .and_then(|()| data::send_stream(socket, &plan, &*flow).map_err(|error| Error::Write { cause: error.source }));
    if sent.is_ok() {
        await_close(socket);
    }
    state.end(&flow, clock::now(), table);
    let info = || Some(Box::new(flow.info.clone()));
    sent.map_err(|error| (info(), error))?;
    if flow.is_stopped() { Err((info(), Error::Interrupted)) } else { Ok(()) }
}

/// Sends a header before bursts, so that the client knows when they began.
fn begin_times(socket: &Socket, asked: &ClientHeader, flow: &RunningFlow) -> Result<(), Error> {
    if asked.trip_start.is_none() {
        return Ok(());
    }
    let header = ClientHeader { mode: TestMode::Forward, trip_start: Some(clock::wall()), is_extended: true, ..*asked };
    let bytes = header.write_stream();
    send_whole(socket, &bytes).map_err(|cause| Error::Write { cause })?;
    flow.add(FlowCounter::Bytes, bytes.len() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_without_a_byte_ends_and_one_with_bytes_does_not() {
        let table = FlowTable::new(&(), None);
        let (listener, here) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), "127.0.0.1:0".parse().unwrap());
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from(client);
        let state = ServerState::new(super::super::ServerOptions::default(), here);
        let info = info(&socket, None, FlowRole::Receiver, &state, &table).unwrap();
        let flow = table.add(info, None, FlowTimes { start: clock::now(), ends_at: Nanos::MAX });
        let watched = WatchedFlow::new(&flow, Nanos::ZERO);
        for _ in 0..3 {
            watched.add(FlowCounter::Bytes, 1);
            assert!(!watched.is_over(), "a byte has come since the last look");
        }
        clock::sleep_until(clock::now() + Nanos(1));
        assert!(watched.is_over() && watched.is_idle.get());
        assert_eq!(flow.counts().bytes, 3);
    }
}
