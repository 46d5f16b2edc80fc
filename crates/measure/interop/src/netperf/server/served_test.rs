//! One test of a client: its data socket, its limits, and its counts.

use std::{
    array,
    cell::{Cell, RefCell},
    net::SocketAddr,
    os::fd::AsFd,
    sync::Arc,
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::{BitsPerSec, Nanos, approximate};
use fathom_sys::{
    clock,
    policy::{Destination, Policy},
    socket::{self, Listener, Socket, tcp_info::TcpInfo},
};
use fathom_transport::payload::Payload;

use super::options::SharedSetup;
use crate::netperf::{
    CpuTicks, DataPattern, DataProtocol, EndCounts, Error, TestLength, TestSpec,
    control::ControlConnection,
    data_socket::{self, ServerSocket},
    test_spec::{PAD, call_size, errno, stream_budget},
    transfer::{self, Counter, MessagePair, N_COUNTERS, TransferContext},
};

/// The longest test of a server without a limit of its own: a day.
const TEST_MAX: Nanos = Nanos::from_secs(86_400);
/// How often the control connection and the limits are looked at.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(100);
/// A test whose time is over ends when nothing has come for this long: its end marks were lost, or it has none.
const QUIET_MAX: Nanos = Nanos::from_millis(500);
/// How long a test by a number of bytes or transactions may stand still.
const IDLE_MAX: Nanos = Nanos::from_secs(60);

/// A test that is ready for its client.
pub(super) struct ServedTest {
    socket: ServerSocket,
    spec: TestSpec,
    /// Where a server that sends datagrams sends them.
    to: Option<Destination>,
    rate: Option<(u64, Nanos)>,
    longest: Nanos,
    stop: StopFlag,
    /// What responses are made of.
    payload: Arc<Payload>,
    pub(super) port: u16,
    /// The buffers before the test: send, receive.
    pub(super) buffers: (i32, i32),
    pub(super) send_size: u32,
    pub(super) recv_size: u32,
    /// The length of the test, known at its end.
    pub(super) seconds: f32,
}

impl ServedTest {
    /// Opens the data socket on the address that the client has connected to, for that client only.
    pub(super) fn open(
        setup: &SharedSetup,
        control: &ControlConnection,
        spec: &TestSpec,
        client_port: u16,
    ) -> Result<Self, Error> {
        let options = &setup.options;
        let (own, client) = control.addresses()?;
        let guests = Policy::anything().guests(&[client.ip()], None);
        let at = SocketAddr::new(own.ip(), spec.remote.port.unwrap_or(0));
        let socket = data_socket::open_server(at, spec.protocol, &spec.remote, &guests)?;
        let sends_datagrams = spec.protocol == DataProtocol::Udp && spec.pattern == DataPattern::Down;
        let to = sends_datagrams.then(|| SocketAddr::new(client.ip(), client_port));
        let to = to.map(|to| options.policy.permit(to)).transpose();
        let to = to.map_err(|_| Error::Refused { why: "to send to this client", errno: errno::EACCES })?;
        if sends_datagrams && client_port == 0 {
            return Err(Error::Refused { why: "datagrams to no port", errno: errno::EOPNOTSUPP });
        }
        let buffers = data_socket::buffer_sizes(&socket);
        let is_transactions = spec.pattern == DataPattern::Transactions;
        let size = |message: u32, asked, buffer| {
            if is_transactions { message } else { call_size(spec.protocol, asked, buffer).min(options.message_max) }
        };
        Ok(Self {
            send_size: size(spec.response_size, spec.remote.send_size, buffers.0),
            recv_size: size(spec.request_size, spec.remote.recv_size, buffers.1),
            port: socket::local_address(&socket)?.port(),
            rate: options.rate,
            longest: options.test_secs_max.map_or(TEST_MAX, |most| Nanos::from_secs(most.into())),
            stop: control.stop().clone(),
            payload: setup.payload.clone(),
            spec: spec.clone(),
            socket,
            to,
            buffers,
            seconds: 0.0,
        })
    }

    /// Runs the test to its end and returns what the server counted.
    pub(super) fn run(&mut self, control: &ControlConnection) -> Result<EndCounts, Error> {
        let ticks = self.spec.remote.measures_cpu.then(CpuTicks::now).transpose()?;
        let context = ServedContext::new(self, control);
        let connection = self.transfer(&context)?;
        if let Some(failure) = context.failure.take() {
            return Err(failure);
        }
        // The time in which nothing was due any more is no part of the test.
        let end = if context.is_quiet.get() { context.nominal } else { clock::now() };
        let at_end = if context.is_quiet.get() { context.ticks_at_nominal.take() } else { None };
        let seconds = (end - context.start).as_secs_f64();
        let cpu = ticks.map(|before| {
            let (after, measured) = match at_end {
                Some((after, at)) => (after, at - context.start),
                None => (CpuTicks::now()?, clock::now() - context.start),
            };
            Ok::<_, Error>(after.since(&before, measured.as_secs_f64() / seconds.max(1e-9)))
        });
        let (cpu, counts) = (cpu.transpose()?, context.counts());
        self.seconds = narrow(seconds);
        let socket = connection.as_ref().map_or(self.socket.as_fd(), AsFd::as_fd);
        let (send_buffer, recv_buffer) = data_socket::buffer_sizes(socket);
        let tcp = connection.as_ref().and_then(|connection| TcpInfo::of(connection).ok());
        Ok(EndCounts {
            send_buffers: (self.buffers.0, send_buffer),
            recv_buffers: (self.buffers.1, recv_buffer),
            send_size: self.send_size,
            recv_size: self.recv_size,
            cpu,
            retransmits: tcp.as_ref().map(|tcp| tcp.total_retrans.into()),
            congestion: tcp.as_ref().and_then(|_| socket::congestion(socket).ok()),
            ..counts
        })
    }

    /// Moves the data and returns the connection, if there was one.
    fn transfer(&self, context: &ServedContext<'_>) -> Result<Option<Socket>, Error> {
        let failed = |error: fathom_sys::Error| Error::Transfer { cause: error.source };
        let size = |size: u32| usize::try_from(size).unwrap_or(1);
        let messages = || MessagePair::serving(self.payload.clone(), (self.spec.request_size, self.spec.response_size));
        match (self.spec.pattern, &self.socket) {
            (DataPattern::Up, ServerSocket::Datagrams(socket)) => {
                transfer::receive_datagrams(socket, size(self.recv_size), context).map_err(failed)?;
                Ok(None)
            }
            (DataPattern::Down, ServerSocket::Datagrams(socket)) => {
                self.send_datagrams(socket, context)?;
                Ok(None)
            }
            (DataPattern::Transactions, ServerSocket::Datagrams(socket)) => {
                let out = &self.payload.bytes()[..size(self.spec.response_size)];
                transfer::answer_datagrams(socket, (out, self.spec.request_size), context).map_err(failed)?;
                Ok(None)
            }
            (DataPattern::Transactions, ServerSocket::Listener(listener)) if self.spec.is_connection_each => {
                transfer::answer_connections(listener, &mut messages(), context).map_err(failed)?;
                Ok(None)
            }
            (pattern, ServerSocket::Listener(listener)) => {
                let Some(connection) = accept(listener, context)? else { return Ok(None) };
                match pattern {
                    DataPattern::Up => transfer::receive_stream(&connection, size(self.recv_size), context).map(drop),
                    DataPattern::Down => self.send_stream(&connection, context),
                    DataPattern::Transactions => {
                        transfer::answer_requests(&connection, &mut messages(), context).map(drop)
                    }
                }
                .map_err(failed)?;
                Ok(Some(connection))
            }
        }
    }

    fn send_stream(&self, connection: &Socket, context: &ServedContext<'_>) -> fathom_sys::Result<()> {
        let source = transfer::stream_source(usize::try_from(self.send_size).unwrap_or(1), false)?;
        let budget = stream_budget(self.spec.length, self.send_size);
        transfer::send_stream(connection, &source, (budget, self.own_rate()), context)
    }

    fn send_datagrams(&self, socket: &Socket, context: &ServedContext<'_>) -> Result<(), Error> {
        let Some(to) = &self.to else { return Ok(()) };
        let failed = |error: fathom_sys::Error| Error::Transfer { cause: error.source };
        socket::associate(socket, to).map_err(failed)?;
        socket::set_report_full_queues(socket)?;
        let size = usize::try_from(self.send_size).unwrap_or(1);
        transfer::send_datagrams(socket, size, self.own_rate(), context).map_err(failed)?;
        transfer::end_datagrams(socket);
        Ok(())
    }

    /// The rate that this side may send at.
    fn own_rate(&self) -> Option<BitsPerSec> {
        BitsPerSec::new(approximate(self.rate?.0))
    }
}

/// Waits for the data connection of the client; `None` if it did not come in the time of the test.
fn accept(listener: &Listener, context: &ServedContext<'_>) -> Result<Option<Socket>, Error> {
    while !context.is_over() {
        if let Some(connection) = socket::accept_blocking(listener)? {
            return Ok(Some(connection));
        }
    }
    Ok(None)
}

/// The counts of a served test, and what ends it.
struct ServedContext<'a> {
    start: Nanos,
    /// When the client's time is over; far away if a number of bytes or transactions ends the test.
    nominal: Nanos,
    deadline: Nanos,
    count_max: u64,
    counts: [Cell<u64>; N_COUNTERS],
    control: &'a ControlConnection,
    stop: &'a StopFlag,
    rate: Option<(u64, Nanos)>,
    next_look: Cell<Nanos>,
    /// The bytes at the last look that saw new ones, and its time.
    active: Cell<(u64, Nanos)>,
    /// The received bytes at the start of the current averaging time.
    rate_from: Cell<(u64, Nanos)>,
    failure: RefCell<Option<Error>>,
    /// Whether the test ended because nothing came any more.
    is_quiet: Cell<bool>,
    /// The CPUs at the first look after the client's time, for a test that ends later, and its time.
    ticks_at_nominal: RefCell<Option<(CpuTicks, Nanos)>>,
}

impl<'a> ServedContext<'a> {
    fn new(test: &'a ServedTest, control: &'a ControlConnection) -> Self {
        let start = clock::now();
        let is_sender = test.spec.pattern == DataPattern::Down;
        let (nominal, count) = match test.spec.length {
            TestLength::Seconds(0) => (start + test.longest, u64::MAX),
            TestLength::Seconds(seconds) => (start + Nanos::from_secs(seconds.into()).min(test.longest), u64::MAX),
            TestLength::Count(count) => (start + test.longest, count.into()),
        };
        Self {
            start,
            nominal,
            deadline: if is_sender { nominal } else { nominal + PAD },
            // Only connections show no end of their own.
            count_max: if test.spec.is_connection_each { count } else { u64::MAX },
            counts: array::from_fn(|_| Cell::new(0)),
            control,
            stop: &test.stop,
            rate: test.rate,
            next_look: Cell::new(start + LOOK_INTERVAL),
            active: Cell::new((0, start)),
            rate_from: Cell::new((0, start)),
            failure: RefCell::new(None),
            is_quiet: Cell::new(false),
            ticks_at_nominal: RefCell::new(None),
        }
    }

    fn count(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].get()
    }

    fn counts(&self) -> EndCounts {
        EndCounts {
            bytes_sent: self.count(Counter::BytesSent),
            send_calls: self.count(Counter::SendCalls),
            failed_sends: self.count(Counter::FailedSends),
            bytes_received: self.count(Counter::BytesReceived),
            recv_calls: self.count(Counter::RecvCalls),
            transactions: self.count(Counter::Transactions),
            ..EndCounts::default()
        }
    }

    /// Looks for a reason to end. Returns whether there is one.
    fn look(&self, now: Nanos) -> bool {
        self.next_look.set(now + LOOK_INTERVAL);
        let received = self.count(Counter::BytesReceived);
        let bytes = received + self.count(Counter::BytesSent);
        let (before, since) = self.active.get();
        if bytes != before {
            self.active.set((bytes, now));
        }
        let idle = if bytes == before { now - since } else { Nanos::ZERO };
        let failure = if self.stop.state() != Stop::Continue {
            Some(Error::Interrupted)
        } else if let Some(interruption) = self.control.interruption() {
            Some(interruption)
        } else if idle > IDLE_MAX {
            Some(Error::Silent { awaited: "data", waited: IDLE_MAX })
        } else if self.is_too_fast(received, now) {
            Some(Error::Refused { why: "a rate that is higher than allowed", errno: errno::EDQUOT })
        } else {
            None
        };
        if now > self.nominal {
            let mut ticks = self.ticks_at_nominal.borrow_mut();
            if ticks.is_none() {
                *ticks = CpuTicks::now().ok().map(|ticks| (ticks, now));
            }
            self.is_quiet.set(idle > QUIET_MAX);
        }
        let is_over = failure.is_some() || self.is_quiet.get();
        if failure.is_some() {
            self.failure.replace(failure);
        }
        is_over
    }

    fn is_too_fast(&self, received: u64, now: Nanos) -> bool {
        let Some((most, span)) = self.rate else { return false };
        let (before, since) = self.rate_from.get();
        if now - since < span {
            return false;
        }
        self.rate_from.set((received, now));
        approximate(received - before) * 8.0 / (now - since).as_secs_f64() > approximate(most)
    }
}

impl TransferContext for ServedContext<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        let cell = &self.counts[counter as usize];
        cell.set(cell.get() + amount);
    }

    fn is_over(&self) -> bool {
        let now = clock::now();
        now >= self.deadline
            || self.count(Counter::Transactions) >= self.count_max
            || self.failure.borrow().is_some()
            || (now >= self.next_look.get() && self.look(now))
    }
}

/// A time as the message carries it.
#[expect(clippy::cast_possible_truncation, reason = "seven digits of the seconds of a test are enough")]
fn narrow(seconds: f64) -> f32 {
    seconds as f32
}
