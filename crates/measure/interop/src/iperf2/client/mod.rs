//! The client: opens the flows of a test, says what it wants, carries the data, and takes the server's reports.

mod carrier;
mod drive;
mod open_flow;
mod options;
mod proof;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{clock, policy::Destination, process::threads, socket::Socket};

use super::{
    ClientHeader, Error, FlowInfo, FlowRole, FlowTable, Server, ServerOptions, TCP_LENGTH, TestAmount, TestMode,
    TransportProtocol, UDP_LENGTH_V4, UDP_LENGTH_V6,
    data::{FlowPlan, burst_length},
    flow_table::FlowTimes,
    server::{BackTraffic, ServedProtocols},
};
use crate::sockets::addresses;

pub(crate) use carrier::FlowCarrier;
use open_flow::{OpenFlow, open_first, open_flow};
pub use options::{ClientOptions, ServerProof};

pub(crate) use drive::{await_close, request_report, send_whole};

/// How often a running test looks for intervals and for the end.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// How long the other side may take beyond the time of a test, as in iperf (`SLOPSECS`).
pub(crate) const GRACE: Nanos = Nanos::from_secs(2);
/// How long a client waits for a flow of the server that it asked for.
const BACK_FLOW_MAX: Nanos = Nanos::from_secs(5);

/// A client whose flows are open.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    to: Destination,
    flows: Vec<OpenFlow>,
    /// Takes the connections of the server (`-d`, `-r`).
    listener: Option<Server>,
}

impl Client {
    /// Opens the flows. If the target must prove itself, it has done so afterwards, or does before any load in the other direction.
    ///
    /// # Errors
    /// If nobody listens, if the target is no iperf server, or if an option is refused.
    pub fn connect(options: ClientOptions) -> Result<Self, Error> {
        let listener = back_listener(&options)?;
        let (to, first) = open_first(&options)?;
        let mut client = Self { options, to, flows: vec![first], listener };
        if client.options.protocol == TransportProtocol::Udp && client.options.proof == ServerProof::Required {
            proof::udp_server(&client.options, &client.to, client.header())?;
        }
        for place in 1..client.options.n_flows {
            let flow = open_flow(&client.options, &client.to, place)?;
            client.flows.push(flow);
        }
        if client.options.protocol == TransportProtocol::Tcp && client.options.mode != TestMode::Reverse {
            client.send_headers()?;
        }
        Ok(client)
    }

    /// Sends the header on every connection. The first one's acknowledgement is awaited if it is needed as proof.
    fn send_headers(&mut self) -> Result<(), Error> {
        if self.options.has_no_header {
            return match self.options.proof {
                ServerProof::NotNeeded => Ok(()),
                ServerProof::Required => Err(self.no_server("without a header nobody acknowledges it")),
            };
        }
        let needs_ack = self.options.proof == ServerProof::Required;
        for place in 0..self.flows.len() {
            // A server sends no acknowledgement for reverse tests unless it is asked to.
            let waits = needs_ack && place == 0;
            let header =
                ClientHeader { detects_peer: waits && self.options.mode == TestMode::Reverse, ..self.header() };
            let bytes = header.write_stream();
            let socket = self.flows[place].socket.clone();
            send_whole(&socket, &bytes).map_err(|cause| Error::Write { cause })?;
            self.flows[place].n_header = bytes.len() as u64;
            if waits {
                let ack = proof::tcp_ack(&socket).map_err(|why| self.no_server(&why))?;
                self.flows[place].peer_version = ack.version;
            }
        }
        Ok(())
    }

    fn no_server(&self, why: &str) -> Error {
        Error::NoServer { target: self.to.to_string(), why: why.to_owned() }
    }

    /// Asks the server to send over the connections of a reverse test; does nothing for others.
    pub(crate) fn request_reverse(&mut self) -> Result<(), Error> {
        let is_asked = self.options.protocol == TransportProtocol::Tcp && self.options.mode == TestMode::Reverse;
        if is_asked { self.send_headers() } else { Ok(()) }
    }

    /// Returns what carries the data of each flow.
    pub(crate) fn carrier(&self) -> FlowCarrier {
        FlowCarrier(self.plan())
    }

    /// The header of this client's flows.
    pub(crate) fn header(&self) -> ClientHeader {
        let options = &self.options;
        ClientHeader {
            mode: options.mode,
            n_flows: options.n_flows,
            port: self.listener.as_ref().map_or_else(|| self.port(), |listener| listener.address().port()),
            length: options
                .length
                .map(|length| length.min(self.server_length_max()))
                .and_then(|n| u32::try_from(n).ok()),
            amount: options.amount,
            is_extended: true,
            tos: options.setup.tos,
            rate: options.rate,
            trip_start: options.has_trip_times.then(clock::wall),
            has_wide_numbers: true,
            ..ClientHeader::default()
        }
    }

    /// The longest length that a server is asked to send with.
    ///
    /// iperf 2.1.8 keeps the buffer of its own length when it takes the client's: a longer one ends it with a segmentation fault.
    fn server_length_max(&self) -> usize {
        match (self.options.mode, self.options.protocol) {
            (TestMode::Forward, _) => usize::MAX,
            (_, TransportProtocol::Tcp) => TCP_LENGTH,
            (_, TransportProtocol::Udp) => UDP_LENGTH_V4,
        }
    }

    fn port(&self) -> u16 {
        self.to.address().map_or(0, |address| address.port())
    }

    /// The server's address.
    #[must_use]
    pub fn server(&self) -> Option<SocketAddr> {
        self.to.address()
    }

    /// The sockets of the flows, in their order.
    pub(crate) fn sockets(&self) -> Vec<Arc<Socket>> {
        self.flows.iter().map(|flow| flow.socket.clone()).collect()
    }

    /// The port and the buffer of the listener for connections of the server, if the test has any.
    #[must_use]
    pub fn listener(&self) -> Option<(u16, Option<Bytes>)> {
        let listener = self.listener.as_ref()?;
        Some((listener.address().port(), listener.window()))
    }

    /// What each flow carries.
    pub(crate) fn plan(&self) -> FlowPlan {
        let options = &self.options;
        let length = options.length.unwrap_or_else(|| self.default_length());
        let role = if options.mode == TestMode::Reverse { FlowRole::Receiver } else { FlowRole::Sender };
        let is_tcp = options.protocol == TransportProtocol::Tcp;
        FlowPlan {
            protocol: options.protocol,
            role,
            length: if is_tcp && options.has_trip_times { burst_length(length) } else { length },
            rate: options.rate,
            budget: match options.amount {
                TestAmount::Bytes(bytes) => Some(bytes),
                TestAmount::Time(_) => None,
            },
            has_trip_times: options.has_trip_times,
            counts_calls: options.counts_calls,
            header: (!is_tcp && !options.has_no_header).then(|| self.header()),
        }
    }

    fn default_length(&self) -> usize {
        match (self.options.protocol, self.server()) {
            (TransportProtocol::Tcp, _) => TCP_LENGTH,
            (TransportProtocol::Udp, Some(SocketAddr::V6(_))) => UDP_LENGTH_V6,
            (TransportProtocol::Udp, _) => UDP_LENGTH_V4,
        }
    }

    /// Carries the data until the end of all flows.
    ///
    /// # Errors
    /// The first failure. What was measured until then was reported to the table's observer.
    pub fn run(mut self, table: &FlowTable<'_>, stop: &StopFlag) -> Result<(), Error> {
        let group = table.new_group(self.options.n_flows);
        let infos = self.flows.iter().map(|flow| self.info(flow, table.next_id(), group));
        let infos: Vec<FlowInfo> = infos.collect::<Result<_, _>>()?;
        for info in &infos {
            table.observer().on_flow(info);
        }
        self.request_reverse()?;
        let plan = self.plan();
        let times = self.times(clock::now());
        let listener = self.listener.take();
        let flows: Vec<_> = infos
            .into_iter()
            .zip(&self.flows)
            .map(|(info, open)| (table.add_silently(info, Some(open.socket.clone()), times), open.clone()))
            .collect();
        let n_running = AtomicUsize::new(flows.len());
        thread::scope(|scope| {
            let back_stop = StopFlag::default();
            let start_listener = |listener: Server| {
                let back_stop = back_stop.clone();
                threads::start_within(scope, "listener", move || listener.run(&back_stop, table))
            };
            let back = listener.map(start_listener).transpose()?;
            let mut threads = Vec::new();
            for (flow, open) in flows {
                let (n_running, plan) = (&n_running, &plan);
                let drive = move || {
                    let outcome = drive::flow(&flow, &open, plan, table);
                    n_running.fetch_sub(1, Ordering::Release);
                    outcome
                };
                threads.push(threads::start_within(scope, "flow", drive)?);
            }
            let is_back_over = || back.as_ref().is_none_or(thread::ScopedJoinHandle::is_finished);
            let mut was_interrupted = false;
            while n_running.load(Ordering::Acquire) > 0 || !is_back_over() {
                let next = table.tick(clock::now());
                if stop.state() != Stop::Continue && !was_interrupted {
                    was_interrupted = true;
                    table.stop_all();
                    back_stop.finish();
                }
                clock::sleep_until(next.min(clock::now() + POLL_INTERVAL));
            }
            let join = |thread: thread::ScopedJoinHandle<'_, Result<(), Error>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let outcomes: Vec<Result<(), Error>> = threads.into_iter().map(join).collect();
            let served = back.map(|back| back.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            outcomes.into_iter().collect::<Result<(), Error>>()?;
            match served.transpose()? {
                _ if was_interrupted => Err(Error::Interrupted),
                Some(served) if served.finished == 0 => Err(Error::NoBackFlow),
                _ => Ok(()),
            }
        })
    }

    /// The times of flows that begin now.
    fn times(&self, start: Nanos) -> FlowTimes {
        let is_reverse = self.options.mode == TestMode::Reverse;
        let ends_at = match self.options.amount {
            TestAmount::Time(span) if is_reverse => start + span + GRACE,
            TestAmount::Time(span) => start + span,
            TestAmount::Bytes(_) => Nanos::MAX,
        };
        FlowTimes { start, ends_at }
    }

    fn info(&self, flow: &OpenFlow, id: u32, group: super::flow::FlowGroup) -> Result<FlowInfo, Error> {
        let (local, remote) = addresses(&flow.socket)?;
        let plan = self.plan();
        Ok(FlowInfo {
            id,
            group,
            role: plan.role,
            protocol: plan.protocol,
            mode: self.options.mode,
            is_back: self.options.mode == TestMode::Reverse,
            local,
            remote,
            has_trip_times: plan.has_trip_times,
            length: plan.length,
            tos: self.options.setup.tos,
            peer_version: flow.peer_version,
            facts: flow.facts,
            began: clock::wall(),
        })
    }
}

/// Listens for the flows of the server, if the test has any.
fn back_listener(options: &ClientOptions) -> Result<Option<Server>, Error> {
    if !matches!(options.mode, TestMode::Dual | TestMode::Tradeoff) {
        return Ok(None);
    }
    let Some(server) = options.servers.first().and_then(Destination::address) else { return Ok(None) };
    let any = if server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let at = SocketAddr::new(options.from.unwrap_or(any), options.listen_port.unwrap_or(server.port()));
    let peers: Vec<IpAddr> = options.servers.iter().filter_map(Destination::address).map(|peer| peer.ip()).collect();
    let time = match options.amount {
        TestAmount::Time(span) => span,
        TestAmount::Bytes(_) => Nanos::ZERO,
    };
    let wait = if options.mode == TestMode::Tradeoff { time } else { Nanos::ZERO };
    let server_options = ServerOptions {
        protocols: match options.protocol {
            TransportProtocol::Tcp => ServedProtocols::Tcp,
            TransportProtocol::Udp => ServedProtocols::Udp,
        },
        tests: Some(options.n_flows.into()),
        idle: Some(wait + BACK_FLOW_MAX),
        is_client_allowed: Some(Arc::new(move |address| peers.contains(&address.to_canonical()))),
        back_traffic: BackTraffic::Never,
        is_back: true,
        length: options.length,
        counts_calls: options.counts_calls,
        setup: options.setup.clone(),
        ..ServerOptions::default()
    };
    Server::bind(at, server_options).map(Some)
}
