//! The client: connects, asks, streams, ends, and compares results.

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
    control::{ControlConnection, MESSAGE_TIMEOUT, socket_addresses},
    counts::{Iperf3Outcome, Stream, StreamRole, TestObserver, TestStartInfo, id_at},
    data, stream_options,
    transfer::{RunLimits, TransferRun},
    wire::{self, Cookie, TestState},
};

/// What a client is asked for.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Where the server listens: each is tried in turn.
    pub servers: Vec<Destination>,
    /// What the test is; a block of zero is filled in.
    pub parameters: Parameters,
    /// The address to connect from.
    pub from: Option<IpAddr>,
    /// The interface to connect through.
    pub device: Option<String>,
    /// The port of the first stream; the others follow.
    pub port: Option<u16>,
    /// How long the control connection may take; TCP's own time-out without it.
    pub connect_timeout: Option<Nanos>,
    /// After how long without traffic the control connection is asked for a sign of life; never without it.
    pub keepalive: Option<Nanos>,
    /// How long a receiver may hear nothing.
    pub receive_timeout: Option<Nanos>,
    /// How long sent data may stay unacknowledged.
    pub send_timeout: Option<Nanos>,
    /// The distance of reports; none for a single one at the end.
    pub interval: Option<Nanos>,
    /// What each stream of TCP sends, or where it writes what arrives.
    pub file: Option<PathBuf>,
    /// Who asks, for a server that wants to know.
    pub login: Option<Login>,
}

/// How long a connect may take unless it is said: longer than the kernel retries (`tcp_syn_retries` is 6, which are 127 s).
const CONNECT_MAX: Nanos = Nanos::from_secs(130);
/// The datagram when the path says nothing.
const DATAGRAM: u64 = 1460;
/// How long a receiver hears nothing before the test is broken off.
pub(crate) const RECEIVE_TIMEOUT: Nanos = Nanos::from_secs(120);
/// How long the end may take beyond the time of a test, as a server allows it.
pub(crate) const GRACE: Nanos = Nanos::from_secs(40);
/// A day and its grace: no test is longer.
pub(crate) const TEST_TIME_MAX: Nanos = Nanos::from_secs(86_400 + 640);

impl Cookie {
    /// A cookie that nobody else has, from the system's random source.
    #[must_use]
    pub fn fresh() -> Self {
        let mut random = [0; wire::COOKIE - 1];
        OsRng.fill_bytes(&mut random);
        Self::from_random(random)
    }
}

/// A client whose parameters the server has taken.
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
    /// Connects and agrees on the parameters; no stream is open yet.
    ///
    /// # Errors
    /// Nobody listens, the server is busy, does not like the parameters or the login, or speaks something else.
    pub fn connect(mut asked: ClientOptions, cookie: Cookie, stop: &StopFlag) -> Result<Self, Error> {
        let (socket, (server, to)) = connect_any(&asked)?;
        if let Some(idle) = asked.keepalive {
            socket_options::set_keepalive(&socket, idle)?;
        }
        let mut control = ControlConnection::new(socket, stop.clone())?;
        control.write(cookie.bytes())?;
        // As iperf3 asks: behind the first data, whose acknowledgement may widen the window that bounds it.
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

    /// Opens the streams one after another and waits until the server has begun.
    ///
    /// # Errors
    /// A stream that does not come about, or a server that says something else.
    ///
    /// # Panics
    /// When the parameters ask for more than 128 streams in a direction.
    pub fn open_streams(&mut self) -> Result<(), Error> {
        let n = usize::try_from(self.options.parameters.n_streams()).expect("at most 256");
        for place in 0..n {
            let socket = match self.options.parameters.protocol {
                TransportProtocol::Tcp => self.connect_stream(place)?,
                TransportProtocol::Udp => self.open_udp_stream(place)?,
            };
            stream_options::prepare_stream(&socket)?;
            let (local, remote) = socket_addresses(&socket)?;
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

    /// A socket of a stream, bound as it was asked for.
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

    /// Where a stream connects to, with the flow label that was asked for.
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

    /// Opens a UDP stream: a word out, a word back.
    fn open_udp_stream(&self, place: usize) -> Result<Socket, Error> {
        let stream = |cause| Error::Stream { cause };
        let socket = self.stream_socket(place)?;
        let to = self.flow_label_destination(&socket)?;
        socket::associate(&socket, &to).map_err(|error| stream(error.source))?;
        data::greet(&socket, self.control.stop()).map_err(stream)?;
        Ok(socket)
    }

    /// How the test begins, for whoever looks on.
    #[must_use]
    pub fn start_info(&self) -> TestStartInfo {
        let buffer = |which| {
            let socket = self.streams.first().map(|open| open.socket.as_ref());
            // The kernel counts its bookkeeping in, and so does iperf3 when it shows them.
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

    /// What both sides have agreed on.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.options.parameters
    }

    /// What the server says in the middle of a test, which can only end it.
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

    /// Streams until the end and exchanges results; `watch` is told what was counted even when the test breaks off.
    ///
    /// # Errors
    /// What broke it off.
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
            // Up to 3.12 a server sends its output to everybody once one client has asked for it.
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

    /// Tells a server that still listens that nothing more comes.
    pub(crate) fn send_termination(&mut self, error: &Error) {
        if matches!(error, Error::Interrupted | Error::Idle) {
            // A server that cannot be told any more notices the end of the connection.
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

/// The control connection to the first address that takes it.
fn connect_any(asked: &ClientOptions) -> Result<(Socket, (SocketAddr, Destination)), Error> {
    let mut refused = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for (server, to) in asked.servers.iter().filter_map(|to| Some((to.address()?, to))) {
        let connected = socket::stream(server).and_then(|socket| {
            bind(&socket, asked, 0).map_err(socket::named("bind"))?;
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
