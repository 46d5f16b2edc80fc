//! The client: connects, agrees on parameters, streams, ends the test, and exchanges results.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use fathom_engine::StopFlag;
use fathom_model::{
    Side,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    clock,
    policy::Destination,
    socket::{self, Buffer, Domain, Protocol, Socket, Type, Wait, socket_options},
};
use rsa::rand_core::{OsRng, RngCore as _};

use super::{
    Error, Login, OpenStream, ParameterFlag, Parameters, Results, TransferDirection, TransportProtocol,
    control::{ControlConnection, MESSAGE_TIMEOUT},
    counts::{Iperf3Outcome, Stream, StreamRole, TestObserver, TestStartInfo, id_at},
    data, stream_options,
    transfer::{RunLimits, TransferRun},
    wire::{self, Cookie, TestState},
};

/// The options of a client.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// The addresses of the server, tried in turn.
    pub servers: Vec<Destination>,
    /// The parameters of the test; a block of zero is replaced by a default.
    pub parameters: Parameters,
    /// The local address.
    pub from: Option<IpAddr>,
    /// The interface to connect through.
    pub device: Option<String>,
    /// The local port of the first stream; the other streams use the ports above it.
    pub port: Option<u16>,
    /// The timeout for connecting the control connection; TCP's own if `None`.
    pub connect_timeout: Option<Nanos>,
    /// The idle time before keepalive probes on the control connection; `None` for no probes.
    pub keepalive: Option<Nanos>,
    /// How long a receiver may receive nothing.
    pub receive_timeout: Option<Nanos>,
    /// How long sent data may stay unacknowledged.
    pub send_timeout: Option<Nanos>,
    /// The reporting interval; `None` for a single report at the end.
    pub interval: Option<Nanos>,
    /// The file that each TCP stream sends, or writes received data to.
    pub file: Option<PathBuf>,
    /// The login, for a server that requires one.
    pub login: Option<Login>,
}

/// The default timeout of a connect: longer than the kernel retries (`tcp_syn_retries` is 6, which takes 127 s).
const CONNECT_MAX: Nanos = Nanos::from_secs(130);
/// The datagram size if the path MTU is unknown.
const DATAGRAM: u64 = 1460;
/// How long a receiver may receive nothing before the test is aborted.
pub(crate) const RECEIVE_TIMEOUT: Nanos = Nanos::from_secs(120);
/// How long the end may take beyond the time of a test. Servers allow the same.
pub(crate) const GRACE: Nanos = Nanos::from_secs(40);
/// The longest test: a day, the longest omitted part (600 s), and the grace (40 s).
pub(crate) const TEST_TIME_MAX: Nanos = Nanos::from_secs(86_400 + 640);

impl Cookie {
    /// Creates a unique cookie from the system's random source.
    #[must_use]
    pub fn fresh() -> Self {
        let mut random = [0; wire::COOKIE - 1];
        OsRng.fill_bytes(&mut random);
        Self::from_random(random)
    }
}

/// A client whose parameters the server has accepted.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    server: SocketAddr,
    to: Destination,
    control: ControlConnection,
    cookie: Cookie,
    control_mss: u32,
    streams: Vec<OpenStream>,
}

impl Client {
    /// Connects and agrees on the parameters. No stream is open afterwards.
    ///
    /// # Errors
    /// If no server listens, if it is busy, if it rejects the parameters or the login, or if it speaks another protocol.
    pub fn connect(mut asked: ClientOptions, cookie: Cookie, stop: &StopFlag) -> Result<Self, Error> {
        let (socket, (server, to)) = connect_any(&asked)?;
        if let Some(idle) = asked.keepalive {
            socket_options::set_keepalive(&socket, idle)?;
        }
        let mut control = ControlConnection::new(socket, stop.clone())?;
        control.write(cookie.bytes())?;
        // Read at the same point as in iperf3: after the first data, whose acknowledgment may widen the window that limits it.
        let control_mss = control.socket().tcp_mss().unwrap_or(0);
        control.expect(TestState::ParamExchange, "the request for parameters")?;
        if asked.parameters.block == Bytes(0) {
            asked.parameters.block = match asked.parameters.protocol {
                TransportProtocol::Tcp => super::parameters::TCP_BLOCK,
                TransportProtocol::Udp => {
                    Bytes(Some(u64::from(control_mss)).filter(|mss| *mss > 0).unwrap_or(DATAGRAM))
                }
            };
        }
        if let Some(login) = &asked.login {
            asked.parameters.token = Some(login.token(clock::wall().0 / 1_000_000_000)?);
        }
        control.write(&wire::write_json(&asked.parameters.write()))?;
        control.expect(TestState::CreateStreams, "the request for streams")?;
        Ok(Self { options: asked, server, to, control, cookie, control_mss, streams: Vec::new() })
    }

    /// Opens the streams one after another, and waits until the server has started.
    ///
    /// # Errors
    /// If a stream cannot be opened, or if the server sends something unexpected.
    ///
    /// # Panics
    /// If the parameters contain more than 128 streams in a direction.
    pub fn open_streams(&mut self) -> Result<(), Error> {
        let n = usize::try_from(self.options.parameters.n_streams()).expect("at most 256");
        for place in 0..n {
            let socket = match self.options.parameters.protocol {
                TransportProtocol::Tcp => self.connect_stream(place)?,
                TransportProtocol::Udp => self.open_udp_stream(place)?,
            };
            stream_options::prepare_stream(&socket)?;
            let (local, remote) = crate::sockets::addresses(&socket)?;
            let stream = Stream { id: id_at(place), role: self.role(place), local, remote };
            self.streams.push(OpenStream::new(stream, socket, self.options.file.as_deref())?);
        }
        self.control.expect(TestState::TestStart, "the start of the test")?;
        self.control.expect(TestState::TestRunning, "the start of the test")
    }

    fn role(&self, place: usize) -> StreamRole {
        let parallel = usize::try_from(self.options.parameters.parallel).expect("at most 128");
        let sends = match self.options.parameters.direction {
            TransferDirection::Forward => true,
            TransferDirection::Reverse => false,
            TransferDirection::Both => place < parallel,
        };
        if sends { StreamRole::Sender } else { StreamRole::Receiver }
    }

    /// Creates the socket of a stream, bound as requested.
    fn stream_socket(&self, place: usize) -> Result<Socket, Error> {
        let (kind, protocol) = match self.options.parameters.protocol {
            TransportProtocol::Tcp => (Type::STREAM, Protocol::TCP),
            TransportProtocol::Udp => (Type::DGRAM, Protocol::UDP),
        };
        let stream = |cause| Error::Stream { cause };
        let is_multipath = self.options.parameters.flags.has(ParameterFlag::Multipath) && kind == Type::STREAM;
        let protocol = if is_multipath { Protocol::MPTCP } else { protocol };
        let socket = Socket::new(Domain::for_address(self.server), kind, Some(protocol)).map_err(stream)?;
        let offset = u16::try_from(place).expect("at most 256");
        let port = self.options.port.map_or(0, |port| port.wrapping_add(offset));
        if port != 0 {
            socket.set_reuse_address(true).map_err(stream)?;
        }
        bind(&socket, &self.options, port).map_err(stream)?;
        stream_options::before_connect(&socket, &self.options.parameters)?;
        Ok(socket)
    }

    /// Returns the destination of a stream, with the requested flow label.
    fn flow_label_destination(&self, socket: &Socket) -> Result<Destination, Error> {
        let label = self.options.parameters.flow_label;
        if label == 0 {
            return Ok(self.to.clone());
        }
        socket_options::set_flow_label(socket, &self.to, label)
            .map_err(|error| Error::SocketOption { what: "unable to set IPv6 flow label", cause: error.source })
    }

    fn connect_stream(&self, place: usize) -> Result<Socket, Error> {
        let socket = self.stream_socket(place)?;
        let server = self.flow_label_destination(&socket)?;
        socket::connect(&socket, &server, MESSAGE_TIMEOUT).map_err(|error| Error::Stream { cause: error.source })?;
        if let Some(timeout) = self.options.send_timeout {
            let set = socket.set_tcp_user_timeout(Some(timeout.as_duration()));
            set.map_err(|cause| Error::SocketOption { what: "unable to set TCP USER_TIMEOUT", cause })?;
        }
        socket::set_timeout(&socket, MESSAGE_TIMEOUT)?;
        let mut rest = &self.cookie.bytes()[..];
        while !rest.is_empty() {
            match socket::send(&socket, rest, Wait::Block) {
                Ok(Some(count)) => rest = &rest[count..],
                Ok(None) => return Err(Error::Stream { cause: std::io::ErrorKind::TimedOut.into() }),
                Err(error) => return Err(Error::Stream { cause: error.source }),
            }
        }
        Ok(socket)
    }

    /// Opens a UDP stream: sends a greeting, and receives the answer.
    fn open_udp_stream(&self, place: usize) -> Result<Socket, Error> {
        let stream = |cause| Error::Stream { cause };
        let socket = self.stream_socket(place)?;
        let to = self.flow_label_destination(&socket)?;
        socket::associate(&socket, &to).map_err(|error| stream(error.source))?;
        data::greet(&socket, self.control.stop()).map_err(stream)?;
        Ok(socket)
    }

    /// Returns the start information for observers.
    #[must_use]
    pub fn start_info(&self) -> TestStartInfo {
        let buffer = |which| {
            let socket = self.streams.first().map(|open| open.socket.as_ref());
            // The kernel includes its overhead in buffer sizes, and so does iperf3 when it shows them.
            socket.and_then(|socket| socket::buffer(socket, which).ok()).map_or(Bytes(0), |size| Bytes(size.0 * 2))
        };
        TestStartInfo {
            control: self.control.addresses().unwrap_or((self.server, self.server)),
            cookie: self.cookie,
            parameters: self.options.parameters.clone(),
            control_mss: self.control_mss,
            buffers: (buffer(Buffer::Send), buffer(Buffer::Receive)),
        }
    }

    /// The streams, once they are open.
    pub(crate) fn streams(&self) -> &[OpenStream] {
        &self.streams
    }

    /// The agreed parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.options.parameters
    }

    /// Checks for a message of the server during the test. Such a message can only end the test.
    pub(crate) fn poll_for_end(&mut self) -> Option<Error> {
        const AWAITED: &str = "the end of the test";
        let heard = match self.control.byte_until(Nanos::ZERO) {
            Ok(None) => return None,
            Ok(Some(byte)) => self.control.interpret(byte, AWAITED),
            Err(error) => Err(error),
        };
        Some(
            heard.map_or_else(|error| error, |state| Error::Unexpected { got: format!("{state:?}"), awaited: AWAITED }),
        )
    }

    /// Streams until the end and exchanges results. `watch` receives the counts even if the test is aborted.
    ///
    /// # Errors
    /// The reason why the test was aborted.
    pub fn run(&mut self, watch: &mut dyn TestObserver) -> Result<Iperf3Outcome, Error> {
        let streams: Vec<Stream> = self.streams.iter().map(|open| open.stream).collect();
        watch.on_start(&self.start_info(), &streams);
        let bounds = RunLimits {
            interval: self.options.interval,
            idle: self.options.receive_timeout.unwrap_or(RECEIVE_TIMEOUT),
            time_max: TEST_TIME_MAX,
            rate: None,
        };
        let course = TransferRun {
            side: Side::Initiator,
            parameters: &self.options.parameters,
            streams: &self.streams,
            limits: bounds,
        };
        let (mut outcome, why) = course.run(&mut self.control, watch);
        let told = why.and_then(|()| self.finish(&outcome.results(None)));
        match told {
            Ok(results) => outcome.peer = Some(results),
            Err(error) => {
                self.send_termination(&error);
                watch.on_end(&outcome);
                return Err(error);
            }
        }
        watch.on_end(&outcome);
        Ok(outcome)
    }

    /// Ends the test and exchanges results.
    pub(crate) fn finish(&mut self, ours: &Results) -> Result<Results, Error> {
        self.control.send_state(TestState::TestEnd)?;
        self.control.expect(TestState::ExchangeResults, "the request for results")?;
        self.control.write(&wire::write_json(&ours.write()))?;
        let mut theirs = Results::read(&self.control.read_json("results", wire::RESULTS_MAX)?)?;
        if !self.options.parameters.flags.has(ParameterFlag::ServerOutput) {
            // Up to 3.12, a server sends its output to all clients once one client has asked for it.
            theirs.output = None;
        }
        self.control.expect(TestState::DisplayResults, "the end of the results")?;
        self.control.send_state(TestState::Done)?;
        self.control.close_gracefully();
        for ours in &ours.streams {
            if theirs.stream(ours.id).is_none() {
                return Err(Error::Refused { code: 208, errno: 0 });
            }
        }
        Ok(theirs)
    }

    /// Tells a server that still listens that the client terminates.
    pub(crate) fn send_termination(&mut self, error: &Error) {
        if matches!(error, Error::Interrupted | Error::Idle) {
            // A server that cannot be told notices the end of the connection.
            let _ = self.control.send_state(TestState::ClientTerminate);
        }
    }
}

fn bind(socket: &Socket, asked: &ClientOptions, port: u16) -> std::io::Result<()> {
    if let Some(device) = &asked.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    let any = || {
        asked
            .servers
            .first()
            .and_then(Destination::address)
            .map(|server| if server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) })
    };
    match (asked.from, port) {
        (None, 0) => Ok(()),
        (from, port) => {
            let from = from.or_else(any).unwrap_or(IpAddr::from([0; 4]));
            socket.bind(&SocketAddr::new(from, port).into())
        }
    }
}

/// Opens the control connection to the first address that accepts it.
fn connect_any(asked: &ClientOptions) -> Result<(Socket, (SocketAddr, Destination)), Error> {
    let mut refused = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for (server, to) in asked.servers.iter().filter_map(|to| Some((to.address()?, to))) {
        let connected = socket::stream(server).and_then(|socket| {
            bind(&socket, asked, 0).map_err(socket::error_of("bind"))?;
            socket::connect(&socket, to, asked.connect_timeout.unwrap_or(CONNECT_MAX))?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => return Ok((socket, (server, to.clone()))),
            Err(error) => refused = error.source,
        }
    }
    Err(Error::Connect { cause: refused })
}
