//! Opens the connections of one worker and handles their events.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use fathom_engine::Error;
use fathom_model::{
    Histogram,
    units::{Nanos, counted},
};
use fathom_sys::{
    reactor::{Event, Reactor, ReceivedBytes},
    socket::tcp_info::TcpInfo,
};

use super::{
    CONNECTING_MAX, Connection, FaultCause, FaultCounts, LoadConfig, RequestFault, RequestStage,
    connection::ConnectState, token,
};
use crate::target::{
    self, ChannelSetup, ChannelState, ConnectEndpoints, ConnectionAddresses, LookupResult, NextAddress, Resolver,
    TlsBuffers,
};

/// The time that each step of opening connections took, and what was learned then.
#[derive(Debug, Default)]
pub(crate) struct ConnectTimes {
    pub(crate) resolve: Histogram,
    pub(crate) connect: Histogram,
    pub(crate) proxy: Histogram,
    pub(crate) tls: Histogram,
    /// TLS handshakes that resumed an earlier session.
    pub(crate) n_resumed: u64,
    /// The address that the first connection reached: that of a server, or of the proxy before it.
    pub(crate) reached: Option<IpAddr>,
    /// The connects that failed, by their address, if the name has several.
    pub(crate) failed_at: BTreeMap<IpAddr, u64>,
}

impl ConnectTimes {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.resolve.merge(&other.resolve);
        self.connect.merge(&other.connect);
        self.proxy.merge(&other.proxy);
        self.tls.merge(&other.tls);
        self.n_resumed += other.n_resumed;
        self.reached = self.reached.or(other.reached);
        for (address, n) in &other.failed_at {
            *self.failed_at.entry(*address).or_default() += n;
        }
    }

    /// The addresses at which connects failed with their counts, the most frequent first.
    pub(crate) fn failed_addresses(&self) -> Option<String> {
        let mut all: Vec<_> = self.failed_at.iter().collect();
        all.sort_by_key(|(_, n)| Reverse(**n));
        let lines: Vec<String> = all.into_iter().map(|(address, n)| format!("{address} {n}")).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// The outcome of an event on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectProgress {
    /// Nothing for HTTP.
    Nothing,
    /// The connection is now open; bytes for HTTP may have arrived with it.
    Ready,
    /// Bytes for HTTP are in the TLS buffers.
    Data,
    /// The same, and they are the last.
    Ended,
}

/// Opens, closes and decrypts all connections of a worker. The engine owns the connections, because it keeps more state for each.
pub(crate) struct Connector<R> {
    pub(crate) reactor: R,
    /// Holds decrypted bytes, and encrypted bytes to send.
    pub(crate) tls_buffers: TlsBuffers,
    pub(crate) times: ConnectTimes,
    config: Arc<LoadConfig>,
    resolver: Resolver,
    n_connecting: usize,
    n_failed: usize,
    /// Where each connection goes whose name has several addresses.
    goes_to: BTreeMap<usize, IpAddr>,
}

impl<R: Reactor> Connector<R> {
    /// Returns the connector of worker `idx` of `n_workers`, for `n_lines` connections. The token after theirs is the waker's.
    ///
    /// # Errors
    /// The kernel provides no reactor, or no threads for lookups.
    pub(crate) fn new(
        target: &Arc<LoadConfig>,
        (idx, n_workers): (usize, usize),
        n_lines: usize,
    ) -> Result<Self, Error> {
        let system = |cause| Error::System { what: format!("prepare connections over {}", R::NAME), cause };
        let mut reactor = R::new(token(n_lines + 1).0).map_err(system)?;
        let mut resolver = target.target.resolver(idx, n_workers)?;
        if let Some(waker) = resolver.take_waker() {
            reactor.adopt(token(n_lines), waker);
        }
        Ok(Self {
            reactor,
            tls_buffers: TlsBuffers::default(),
            times: ConnectTimes::default(),
            config: Arc::clone(target),
            resolver,
            n_connecting: 0,
            n_failed: 0,
            goes_to: BTreeMap::new(),
        })
    }

    /// The shortest round trip that the kernel has seen on an open connection; zero without TCP, which has no path. `None` if it has seen none.
    pub(crate) fn baseline_rtt(&self, slot: usize) -> Option<Nanos> {
        TcpInfo::of(self.reactor.socket(token(slot))?).map_or(Some(Nanos::ZERO), |info| info.min_rtt)
    }

    /// What the kernel knows of an open connection. `None` if it does not tell.
    pub(crate) fn tcp_info(&self, slot: usize) -> Option<TcpInfo> {
        TcpInfo::of(self.reactor.socket(token(slot))?).ok()
    }

    /// The time since data arrived on an open connection. `None` if the kernel does not tell.
    pub(crate) fn silent_for(&self, slot: usize) -> Option<Nanos> {
        self.tcp_info(slot).map(|info| info.last_data_recv)
    }

    /// Whether another connect may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.n_connecting < CONNECTING_MAX
    }

    /// Begins to open a closed connection.
    ///
    /// # Errors
    /// The connect could not begin. The caller must close the connection, as after every failure.
    pub(crate) fn connect(&mut self, idx: usize, line: &mut Connection, now: Nanos) -> Result<(), RequestFault> {
        self.n_connecting += 1;
        line.state = ConnectState::Resolving(now);
        match self.resolver.next(usize::from(line.upstream), token(idx).0, now) {
            NextAddress::LookupPending => Ok(()),
            NextAddress::Ready(place) => self.start_connect(idx, line, &place, now),
        }
    }

    fn start_connect(
        &mut self,
        idx: usize,
        line: &mut Connection,
        place: &ConnectEndpoints,
        now: Nanos,
    ) -> Result<(), RequestFault> {
        line.state = ConnectState::Connecting(now);
        let socket = place.open_socket().map_err(|error| RequestFault::system(RequestStage::Connect, &error))?;
        if self.resolver.has_several_addresses(usize::from(line.upstream))
            && let Some(address) = place.address.address()
        {
            self.goes_to.insert(idx, address.ip());
        }
        self.reactor.connect(token(idx), socket, &place.address);
        Ok(())
    }

    /// Handles an event of the resolver's waker; [`Connector::next_lookup`] then has results.
    pub(crate) fn on_waker(&mut self, event: Event) {
        if let Event::Received(piece) = event {
            self.reactor.release(piece);
        }
    }

    /// Returns the next result of the resolver, if any. Results for a connection go to [`Connector::on_lookup`].
    pub(crate) fn next_lookup(&mut self, at: Nanos) -> Option<LookupResult> {
        let looked_up = self.resolver.next_lookup(at)?;
        let (LookupResult::Route { took, .. } | LookupResult::Connection { took, .. }) = &looked_up;
        self.times.resolve.record(took.0);
        Some(looked_up)
    }

    /// Continues with a connection that waited for an address. A connection that was given up meanwhile ignores it.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub(crate) fn on_lookup(
        &mut self,
        idx: usize,
        line: &mut Connection,
        place: Result<ConnectEndpoints, target::ConnectFault>,
        at: Nanos,
    ) -> Result<(), RequestFault> {
        if !matches!(line.state, ConnectState::Resolving(_)) {
            return Ok(());
        }
        self.start_connect(idx, line, &place.map_err(RequestFault::connect)?, at)
    }

    /// Continues once the socket is connected: the steps between TCP and HTTP begin.
    ///
    /// # Errors
    /// The connection cannot be opened.
    pub(crate) fn on_connected(
        &mut self,
        idx: usize,
        line: &mut Connection,
        at: Nanos,
    ) -> Result<ConnectProgress, RequestFault> {
        let ConnectState::Connecting(since) = line.state else { return Ok(ConnectProgress::Nothing) };
        line.state = ConnectState::Negotiating(at);
        // The warm-up counts too: persistent connections are opened then, and seldom afterwards.
        self.times.connect.record((at - since).0);
        line.connect_time = at - since;
        line.channel = self.resolver.channel(usize::from(line.upstream)).map_err(RequestFault::connect)?;
        let is_first = self.times.connect.count() == 1;
        let ends = if is_first || line.channel.needs_addresses() {
            self.reactor.socket(token(idx)).and_then(connection_addresses)
        } else {
            None
        };
        self.times.reached = self.times.reached.or(ends.map(|ends| ends.peer.ip()));
        let step = line.channel.on_connected(ends, at, &mut self.tls_buffers);
        self.send_pending(idx);
        self.on_channel_state(line, step, at)
    }

    /// Handles bytes received on an encrypted or tunneled connection.
    ///
    /// # Errors
    /// The connection fails.
    pub(crate) fn on_received(
        &mut self,
        idx: usize,
        line: &mut Connection,
        piece: ReceivedBytes,
        at: Nanos,
    ) -> Result<ConnectProgress, RequestFault> {
        let step = line.channel.receive(self.reactor.bytes(&piece), at, &mut self.tls_buffers);
        self.reactor.release(piece);
        self.send_pending(idx);
        self.on_channel_state(line, step, at)
    }

    fn on_channel_state(
        &mut self,
        line: &mut Connection,
        step: Result<ChannelState, target::ConnectFault>,
        at: Nanos,
    ) -> Result<ConnectProgress, RequestFault> {
        Ok(match step.map_err(RequestFault::connect)? {
            ChannelState::Opening => ConnectProgress::Nothing,
            ChannelState::Data => ConnectProgress::Data,
            ChannelState::Ended => ConnectProgress::Ended,
            ChannelState::Ready(opened) => {
                self.finish_setup(line, opened, at);
                ConnectProgress::Ready
            }
        })
    }

    fn finish_setup(&mut self, line: &mut Connection, opened: ChannelSetup, at: Nanos) {
        let ConnectState::Negotiating(connected_at) = line.state else { return };
        line.state = ConnectState::Open;
        line.connect_time += at - connected_at;
        if let Some(proxied_at) = opened.tunnel_ready_at {
            self.times.proxy.record((proxied_at - connected_at).0);
        }
        if let Some(secured_at) = opened.tls_ready_at {
            self.times.tls.record((secured_at - opened.tunnel_ready_at.unwrap_or(connected_at)).0);
        }
        self.times.n_resumed += u64::from(opened.is_resumed);
        self.n_connecting -= 1;
        self.config.reached.store(true, Ordering::Relaxed);
    }

    /// Sends the bytes that the channel has left in the TLS buffers.
    pub(crate) fn send_pending(&mut self, idx: usize) {
        if !self.tls_buffers.out.is_empty() {
            self.reactor.send(token(idx), &self.tls_buffers.out);
            self.tls_buffers.out.clear();
        }
    }

    /// Closes a connection in any state.
    pub(crate) fn close(&mut self, idx: usize, line: &mut Connection) {
        if line.is_open() && !line.channel.is_plain() {
            line.channel.close_notify(&mut self.tls_buffers);
            self.send_pending(idx);
        }
        self.n_connecting -= usize::from(line.is_opening());
        self.reactor.close(token(idx));
        line.state = ConnectState::Closed;
        line.channel = target::Channel::default();
    }

    /// Counts a connection that could not be opened.
    pub(crate) fn count_failed_connect(&mut self, idx: usize) {
        self.n_failed += 1;
        if let Some(address) = self.goes_to.remove(&idx) {
            *self.times.failed_at.entry(address).or_default() += 1;
        }
    }

    /// Ends the trial if the target has never been reached: there would be nothing to record.
    pub(crate) fn check_reached(&self, n_lines: usize, faults: &FaultCounts) -> Result<(), Error> {
        let many = n_lines.min(CONNECTING_MAX);
        if self.n_failed < many || self.config.reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let attempts = counted(self.n_failed as u64, "attempt");
        let what = format!("connect to {}: {attempts}, none taken", self.config.name);
        let fault = faults.keys().next();
        let cause = match fault.map(|fault| fault.cause) {
            Some(FaultCause::Errno(errno)) => std::io::Error::from_raw_os_error(errno),
            Some(FaultCause::Connect(_) | FaultCause::NoPort) => {
                let fault = fault.expect("there is one");
                let hint = fault.hint().map(str::to_owned);
                return Err(Error::Unsupported { what: format!("cannot {what}: {fault}"), hint });
            }
            _ => std::io::ErrorKind::TimedOut.into(),
        };
        Err(Error::System { what, cause: fathom_sys::Error::new("connect", cause) })
    }
}

/// The addresses of both ends of a TCP connection.
fn connection_addresses(socket: &fathom_sys::socket::Socket) -> Option<ConnectionAddresses> {
    Some(ConnectionAddresses {
        local: socket.local_addr().ok()?.as_socket()?,
        peer: socket.peer_addr().ok()?.as_socket()?,
    })
}
