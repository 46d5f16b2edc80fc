//! The client: connects to a server, describes a test, moves its data and asks for the server's results.

use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr},
    sync::Arc,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::Destination,
    socket::{self, Socket, Wait, tcp_info::TcpInfo},
};

use super::{
    CpuTicks, DataPattern, DataProtocol, Error, TestLength, TestSpec,
    control::ControlConnection,
    counts::{EndCounts, InterimResult, NetperfOutcome, TimedContext},
    data_socket,
    test_spec::{EndSettings, PAD, call_size, stream_budget},
    transfer::{self, MessagePair, TransferContext},
    wire::{ControlMessage, MessageFormat, OmniResponse, OmniResults, kind},
};

/// How long a connect to the server may take.
const CONNECT_MAX: Nanos = Nanos::from_secs(10);
/// The default limit of an answer: a server that measures its CPU first may take seconds.
const ANSWER_MAX: Nanos = Nanos::from_secs(30);
/// How long the server may take to close the data connection after this side has.
const CLOSE_MAX: Nanos = Nanos::from_secs(10);

/// The options of a client, for all its tests.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The addresses of the server, tried in turn.
    pub servers: Vec<Destination>,
    /// The local address of all connections.
    pub from: Option<IpAddr>,
    /// The text that the server wants to see first.
    pub passphrase: Option<String>,
    /// How long an answer of the server may take.
    pub answer_max: Nanos,
    /// The length of messages; `None` to find out.
    pub format: Option<MessageFormat>,
}

impl ClientOptions {
    /// Creates the options for a server without a passphrase.
    #[must_use]
    pub fn new(servers: Vec<Destination>) -> Self {
        Self { servers, from: None, passphrase: None, answer_max: ANSWER_MAX, format: None }
    }
}

/// A client with an open control connection.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    server: Destination,
    control: ControlConnection,
}

/// A test that the server has prepared, before its first byte.
#[derive(Debug)]
pub(crate) struct PreparedTest {
    pub(crate) socket: Arc<Socket>,
    spec: TestSpec,
    from: Option<IpAddr>,
    /// The address of the server's data socket.
    to: Destination,
    response: OmniResponse,
    /// The buffers of the client's socket before the test: send, receive.
    buffers: (i32, i32),
    /// When the server's time began at the latest.
    since: Nanos,
}

impl Client {
    /// Connects to the server.
    ///
    /// # Errors
    /// If no server listens at any of the addresses.
    pub fn connect(options: ClientOptions, stop: &StopFlag) -> Result<Self, Error> {
        let mut refused = Error::Connect { cause: io::ErrorKind::AddrNotAvailable.into() };
        for server in &options.servers {
            match connect_control(server, &options, stop) {
                Ok(control) => return Ok(Self { server: server.clone(), options, control }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The addresses of the control connection, the local one first.
    ///
    /// # Errors
    /// If the connection is already gone.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Error> {
        self.control.addresses()
    }

    /// Runs one test. `interim` gets what happened in each `interval`.
    ///
    /// # Errors
    /// If the server refuses the test, sends nothing, or breaks it off.
    pub fn run(
        &mut self,
        spec: &TestSpec,
        interim: Option<(Nanos, &mut dyn FnMut(InterimResult))>,
    ) -> Result<NetperfOutcome, Error> {
        let mut prepared = self.prepare(spec)?;
        prepared.connect()?;
        let ticks = spec.local.measures_cpu.then(CpuTicks::now).transpose()?;
        let stop = self.control.stop().clone();
        let context = TimedContext::new(spec, &self.control, interim);
        let moved = prepared.transfer(&context);
        context.finish();
        let tcp = TcpInfo::of(&prepared.socket).ok().filter(|_| spec.protocol == DataProtocol::Tcp);
        let congestion = tcp.as_ref().and_then(|_| socket::congestion(&prepared.socket).ok());
        let (start, counts, latencies, lost) = (context.start, context.counts(), context.latencies(), context.lost());
        let ended = moved.and_then(|()| prepared.end(&stop));
        let elapsed = clock::now() - start;
        let cpu = ticks.map(|before| Ok::<_, Error>(CpuTicks::now()?.since(&before, 1.0))).transpose()?;
        if stop.state() == Stop::Abort {
            return Err(Error::Interrupted);
        }
        let results = match ended {
            Ok(()) => self.results(prepared.results_max(self.options.answer_max))?,
            // The server's reason is better than that of the connection.
            Err(error) => match self.results(Nanos::from_secs(1)) {
                Err(remote @ Error::Remote { .. }) => return Err(remote),
                _ => return Err(error),
            },
        };
        let (send_buffer, recv_buffer) = data_socket::buffer_sizes(&prepared.socket);
        Ok(NetperfOutcome {
            seconds: elapsed.as_secs_f64(),
            local: EndCounts {
                send_buffers: (prepared.buffers.0, send_buffer),
                recv_buffers: (prepared.buffers.1, recv_buffer),
                send_size: prepared.send_size(),
                recv_size: prepared.recv_size(),
                cpu,
                retransmits: tcp.as_ref().map(|tcp| tcp.total_retrans.into()),
                congestion,
                ..counts
            },
            remote: EndCounts::of_results(&results, &prepared.response, spec.remote.measures_cpu),
            latencies,
            lost,
            mss: tcp.as_ref().map(|tcp| tcp.snd_mss.0),
        })
    }

    /// Describes a test to the server and opens the client's data socket, which is not connected yet.
    pub(crate) fn prepare(&mut self, spec: &TestSpec) -> Result<PreparedTest, Error> {
        let server = self.control.addresses()?.1;
        let from = self.options.from;
        let socket = data_socket::open_client(server, from, spec.protocol, &spec.local)?;
        let buffers = data_socket::buffer_sizes(&socket);
        let at = socket.local_addr().ok().and_then(|address| address.as_socket());
        let request = spec.request(at.unwrap_or(server_family_any(server)));
        let core = spec.remote.core.map(i32::from);
        let asked = self.options.format.unwrap_or(MessageFormat::Long);
        let since = clock::now();
        let mut answer = self.ask(&request.message(asked, core))?;
        if answer.format() != asked {
            // An old server has taken the first part of the message for the whole one, and waits for no test on this connection.
            self.options.format = Some(answer.format());
            self.control = connect_control(&self.server, &self.options, &self.control.stop().clone())?;
            answer = self.ask(&request.message(answer.format(), core))?;
        }
        let response = OmniResponse::read(&answer);
        let port = u16::try_from(response.data_port).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| Error::NotNetperf { why: format!("the data port {}", response.data_port) })?;
        Ok(PreparedTest {
            socket: Arc::new(socket),
            spec: spec.clone(),
            from,
            to: self.server.at(port),
            response,
            buffers,
            since,
        })
    }

    fn ask(&mut self, request: &ControlMessage) -> Result<ControlMessage, Error> {
        self.control.send(request)?;
        self.control.answer(kind::OMNI_RESPONSE, "the answer to the request for a test", self.options.answer_max)
    }

    /// Receives the server's results.
    pub(crate) fn results(&mut self, at_most: Nanos) -> Result<OmniResults, Error> {
        let message = self.control.answer(kind::OMNI_RESULTS, "the results of the server", at_most)?;
        Ok(OmniResults::read(&message))
    }

    /// How long an answer may take.
    pub(crate) fn answer_max(&self) -> Nanos {
        self.options.answer_max
    }
}

fn connect_control(server: &Destination, options: &ClientOptions, stop: &StopFlag) -> Result<ControlConnection, Error> {
    let no_connection = |cause| Error::Connect { cause };
    let address = server.address().ok_or_else(|| no_connection(io::ErrorKind::Unsupported.into()))?;
    let socket = socket::stream(address)?;
    if let Some(from) = options.from {
        socket.bind(&SocketAddr::new(from, 0).into()).map_err(no_connection)?;
    }
    socket::connect(&socket, server, CONNECT_MAX).map_err(|error| no_connection(error.source))?;
    let mut control = ControlConnection::new(socket, stop.clone())?;
    if let Some(format) = options.format {
        control.set_format(format);
    }
    if let Some(passphrase) = &options.passphrase {
        let message = ControlMessage::new(control.format(), kind::PASSPHRASE, super::wire::UNSET);
        control.send(&message.with_text(passphrase))?;
    }
    Ok(control)
}

/// The address of a socket that is not bound.
fn server_family_any(server: SocketAddr) -> SocketAddr {
    let ip: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    SocketAddr::new(ip, 0)
}

impl PreparedTest {
    /// Connects the data socket, unless each transaction has a connection of its own.
    pub(crate) fn connect(&mut self) -> Result<(), Error> {
        if self.spec.is_connection_each {
            return Ok(());
        }
        data_socket::connect_client(&self.socket, self.spec.protocol, &self.to)
    }

    /// Bytes per send call of a stream.
    pub(crate) fn send_size(&self) -> u32 {
        call_size(self.spec.protocol, self.spec.local.send_size, self.buffers.0)
    }

    /// Bytes per receive call of a stream.
    pub(crate) fn recv_size(&self) -> u32 {
        call_size(self.spec.protocol, self.spec.local.recv_size, self.buffers.1)
    }

    /// Moves data until it is over.
    pub(crate) fn transfer(&mut self, context: &impl TransferContext) -> Result<(), Error> {
        let spec = &self.spec;
        let size = |size: u32| usize::try_from(size).unwrap_or(1);
        let moved = match (spec.pattern, spec.protocol) {
            (DataPattern::Up, DataProtocol::Tcp) => {
                let source = transfer::stream_source(size(self.send_size()), spec.is_sendfile)?;
                let budget = stream_budget(spec.length, self.send_size());
                transfer::send_stream(&self.socket, &source, (budget, None), context)
            }
            (DataPattern::Up, DataProtocol::Udp) => {
                transfer::send_datagrams(&self.socket, size(self.send_size()), None, context)
            }
            (DataPattern::Down, DataProtocol::Tcp) => {
                transfer::receive_stream(&self.socket, size(self.recv_size()), context).map(drop)
            }
            (DataPattern::Down, DataProtocol::Udp) => {
                transfer::receive_datagrams(&self.socket, size(self.recv_size()), context)
            }
            (DataPattern::Transactions, protocol) => {
                let sizes = (spec.request_size, spec.response_size);
                let mut messages = MessagePair::new(sizes, protocol == DataProtocol::Udp, spec.loss_timeout);
                if spec.is_connection_each {
                    return self.exchange_each(&mut messages, context);
                }
                messages.exchange(&self.socket, spec.burst, context)
            }
        };
        moved.map_err(|error| Error::Transfer { cause: error.source })
    }

    /// Opens a connection for each transaction.
    fn exchange_each(&mut self, messages: &mut MessagePair, context: &impl TransferContext) -> Result<(), Error> {
        let server = self.to.address().ok_or_else(|| Error::Data { cause: io::ErrorKind::Unsupported.into() })?;
        // A fixed local port would have to wait for the last connection to be forgotten.
        let end = EndSettings { port: None, ..self.spec.local.clone() };
        while !context.is_over() {
            let began = clock::now();
            let socket = data_socket::open_client(server, self.from, DataProtocol::Tcp, &end)?;
            data_socket::connect_client(&socket, DataProtocol::Tcp, &self.to)?;
            let exchanged = messages.exchange_once(&socket, context);
            if !exchanged.map_err(|error| Error::Transfer { cause: error.source })? {
                return Ok(());
            }
            context.add(transfer::Counter::Transactions, 1);
            context.on_transaction(clock::now() - began);
            self.socket = Arc::new(socket);
        }
        Ok(())
    }

    /// Tells the server that this side has finished, and waits until it has received everything.
    pub(crate) fn end(&self, stop: &StopFlag) -> Result<(), Error> {
        self.finish_sending();
        self.await_end(stop)
    }

    /// Tells the server that this side has finished.
    pub(crate) fn finish_sending(&self) {
        if self.spec.protocol == DataProtocol::Udp {
            transfer::end_datagrams(&self.socket);
        } else if !self.spec.is_connection_each {
            // A connection that is already closed needs no shutdown.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }

    /// Waits until the server has received everything.
    pub(crate) fn await_end(&self, stop: &StopFlag) -> Result<(), Error> {
        if self.spec.protocol == DataProtocol::Udp || self.spec.is_connection_each {
            return Ok(());
        }
        let at_most = match self.spec.pattern {
            // A server that still sends ends by its own time, which a user who stops the test does not wait for.
            DataPattern::Down if stop.state() != Stop::Continue => return Err(Error::Interrupted),
            DataPattern::Down => self.results_max(CLOSE_MAX),
            _ => CLOSE_MAX,
        };
        let deadline = clock::now() + at_most;
        let mut room = vec![0; 64 << 10];
        loop {
            match socket::recv(&self.socket, &mut room, Wait::Block) {
                Ok(Some(0)) => return Ok(()),
                Ok(_) if stop.state() == Stop::Abort => return Err(Error::Interrupted),
                Ok(_) if clock::now() < deadline => {}
                Ok(_) => return Err(Error::Silent { awaited: "the end of the data connection", waited: at_most }),
                Err(error) => return Err(Error::Transfer { cause: error.source }),
            }
        }
    }

    /// How long the results may take from now on, if an answer takes at most `answer_max`.
    pub(crate) fn results_max(&self, answer_max: Nanos) -> Nanos {
        let TestLength::Seconds(seconds) = self.spec.length else { return answer_max };
        let own_end = self.since + Nanos::from_secs(seconds.into()) + PAD;
        own_end.since(clock::now()) + answer_max
    }
}
