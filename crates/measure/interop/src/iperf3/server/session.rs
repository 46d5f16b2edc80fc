//! One client from its parameters to its end.

use std::{
    net::{Shutdown, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use fathom_model::{
    Side,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    clock,
    process::affinity,
    socket::{self, Buffer, Socket},
};

use super::state::{ExpectedStreams, ServerState, UdpOpenSlot};
use crate::iperf3::{
    Error, OpenStream, ParameterFlag, Parameters, Results, TransferDirection, TransportProtocol,
    client::{GRACE, TEST_TIME_MAX},
    control::{ControlConnection, MESSAGE_TIMEOUT},
    counts::{Stream, StreamRole, TestObserver, TestStartInfo, id_at},
    error::code,
    stream_options,
    transfer::{RunLimits, TransferRun},
    wire::{self, Cookie, TestState},
};

/// The client of a session.
pub(super) struct ClientInfo {
    pub(super) cookie: Cookie,
    pub(super) from: SocketAddr,
    pub(super) expected: Arc<ExpectedStreams>,
}

/// The most streams of all clients together, one thread each.
const STREAMS_MAX: usize = 1024;
/// How soon a session that waits for streams notices that its client is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Serves one client.
pub(super) fn serve(
    house: &ServerState,
    socket: Socket,
    guest: &ClientInfo,
    streams: &Receiver<Socket>,
    watch: &mut dyn TestObserver,
) -> Result<(), Error> {
    let mut control = ControlConnection::new(socket, house.stop.clone())?;
    let outcome = run_test(house, &mut control, guest, streams, watch);
    if let Err(error) = &outcome {
        // If the client is already gone, this message does not matter.
        let _ = match error {
            Error::Denied { code } => control.write(&wire::write_refusal(*code, 0)),
            Error::Authorization => control.write(&wire::write_refusal(code::AUTHORIZATION, 0)),
            Error::Idle => control.write(&wire::write_refusal(code::IDLE, 0)),
            Error::Malformed { what, .. } => {
                let code = if *what == "results" { code::RESULTS } else { code::PARAMETERS };
                control.write(&wire::write_refusal(code, 0))
            }
            Error::Interrupted => control.send_state(TestState::ServerTerminate),
            _ => Ok(()),
        };
    }
    outcome
}

fn run_test(
    house: &ServerState,
    control: &mut ControlConnection,
    guest: &ClientInfo,
    streams: &Receiver<Socket>,
    watch: &mut dyn TestObserver,
) -> Result<(), Error> {
    control.send_state(TestState::ParamExchange)?;
    let asked = Parameters::read(&control.read_json("parameters", wire::PARAMETERS_MAX)?)?;
    let parameters = check_parameters(house, control, &asked)?;
    pin(house, parameters.server_core)?;
    let n = usize::try_from(parameters.n_streams()).expect("at most 256");
    let _share = ThreadQuota::take(&house.n_streams, n)?;
    let open = open_streams(house, control, guest, streams, &parameters)?;
    control.write(&[TestState::TestStart.byte(), TestState::TestRunning.byte()])?;
    watch
        .on_start(&start_info(control, guest, asked, &open)?, &open.iter().map(|open| open.stream).collect::<Vec<_>>());
    let time = Nanos::from_secs(u64::from(parameters.time_secs) + u64::from(parameters.omit_secs));
    let longest = match house.options.test_secs_max {
        _ if parameters.time_secs > 0 => time + GRACE,
        Some(longest) => Nanos::from_secs(longest.into()) + GRACE,
        None => TEST_TIME_MAX,
    };
    let bounds = RunLimits {
        interval: house.options.interval,
        idle: house.options.receive_timeout,
        time_max: longest,
        rate: house.options.rate,
    };
    let course = TransferRun { side: Side::Responder, parameters: &parameters, streams: &open, limits: bounds };
    let (outcome, why) = course.run(control, watch);
    if parameters.protocol == TransportProtocol::Tcp {
        // Clients before 3.16 read whole blocks even after the end. They must not wait for the rest of one.
        for open in &open {
            // A connection that is already broken needs no shutdown.
            let _ = open.socket.shutdown(Shutdown::Write);
        }
    }
    watch.on_end(&outcome);
    why?;
    control.send_state(TestState::ExchangeResults)?;
    Results::read(&control.read_json("results", wire::RESULTS_MAX)?)?;
    let output = if parameters.flags.has(ParameterFlag::ServerOutput) { watch.take_output() } else { None };
    control.write(&wire::write_json(&outcome.results(output).write()))?;
    control.send_state(TestState::DisplayResults)?;
    match control.expect(TestState::Done, "the end") {
        // A client that simply disconnects has its results.
        Err(Error::Closed) => Ok(()),
        outcome => outcome,
    }
}

/// Pins a test to the core that its client requests, otherwise to that of the server.
fn pin(house: &ServerState, asked: Option<u32>) -> Result<(), Error> {
    if let Some(core) = asked.and_then(|core| usize::try_from(core).ok()) {
        return affinity::pin_thread(core).map_err(|_| Error::Denied { code: code::AFFINITY });
    }
    Ok(house.options.core.map_or(Ok(()), affinity::pin_thread)?)
}

/// Checks the parameters: refuses them, or adds the server's own limit on its sending rate.
fn check_parameters(house: &ServerState, control: &ControlConnection, asked: &Parameters) -> Result<Parameters, Error> {
    let options = &house.options;
    if let Some(doorkeeper) = &options.authenticator {
        let now_secs = clock::wall().0 / 1_000_000_000;
        if !asked.token.as_deref().is_some_and(|token| doorkeeper.is_authorized(token, now_secs)) {
            return Err(Error::Authorization);
        }
    }
    if let Some(longest) = options.test_secs_max {
        // A test by volume is limited during the transfer instead.
        if asked.time_secs + asked.omit_secs > longest {
            return Err(Error::Denied { code: code::DURATION_ALLOWED });
        }
    }
    if let Some(name) = &asked.congestion {
        socket::set_congestion(control.socket(), name).map_err(|_| Error::Denied { code: code::CONGESTION })?;
    }
    // With both directions, the file would be read and overwritten at the same time.
    if options.file.is_some()
        && (asked.protocol == TransportProtocol::Udp || asked.direction == TransferDirection::Both)
    {
        return Err(Error::Denied { code: code::UNIMPLEMENTED });
    }
    let mut parameters = asked.clone();
    if let Some((most, _)) = options.rate {
        let n = u64::from(asked.n_streams());
        if asked.bitrate.saturating_mul(n) > most {
            return Err(Error::Denied { code: code::TOTAL_RATE });
        }
        if asked.bitrate == 0 {
            // A client that sends faster is cut off. The server limits its own sending rate.
            parameters.bitrate = (most / n).max(1);
        }
    }
    Ok(parameters)
}

/// A share of the server's threads, returned on drop.
struct ThreadQuota<'a>(&'a AtomicUsize, usize);

impl<'a> ThreadQuota<'a> {
    fn take(all: &'a AtomicUsize, n: usize) -> Result<Self, Error> {
        let add = |taken: usize| (taken + n <= STREAMS_MAX).then_some(taken + n);
        all.fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .map(|_| Self(all, n))
            .map_err(|_| Error::Denied { code: code::STREAMS })
    }
}

impl Drop for ThreadQuota<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

/// Requests the streams and waits until they are open.
fn open_streams(
    house: &ServerState,
    control: &mut ControlConnection,
    guest: &ClientInfo,
    streams: &Receiver<Socket>,
    parameters: &Parameters,
) -> Result<Vec<OpenStream>, Error> {
    let n = usize::try_from(parameters.n_streams()).expect("at most 256");
    let deadline = clock::now() + MESSAGE_TIMEOUT;
    let turn = match parameters.protocol {
        TransportProtocol::Tcp => None,
        TransportProtocol::Udp => Some(wait_for_udp_slot(house, control, guest, deadline)?),
    };
    let wanted = match parameters.protocol {
        TransportProtocol::Tcp => &guest.expected.connections,
        TransportProtocol::Udp => &guest.expected.datagrams,
    };
    wanted.store(n, Ordering::Release);
    control.send_state(TestState::CreateStreams)?;
    let mut open = Vec::with_capacity(n);
    while open.len() < n {
        match streams.recv_timeout(POLL_INTERVAL) {
            Ok(socket) => {
                stream_options::accepted(&socket, parameters)?;
                stream_options::prepare_stream(&socket)?;
                let (local, remote) = crate::sockets::addresses(&socket)?;
                let stream = Stream { id: id_at(open.len()), role: role(parameters, open.len()), local, remote };
                let with_file = OpenStream::new(stream, socket, house.options.file.as_deref());
                open.push(with_file.map_err(|_| Error::Denied { code: code::FILE })?);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                check_connected(control, "the streams")?;
                if clock::now() > deadline {
                    return Err(Error::Denied { code: code::ACCEPT_STREAM });
                }
            }
        }
    }
    drop(turn);
    Ok(open)
}

fn role(parameters: &Parameters, place: usize) -> StreamRole {
    let sends = match parameters.direction {
        TransferDirection::Forward => false,
        TransferDirection::Reverse => true,
        TransferDirection::Both => place >= usize::try_from(parameters.parallel).expect("at most 128"),
    };
    if sends { StreamRole::Sender } else { StreamRole::Receiver }
}

/// Returns an error if the client sends anything at a point where it must be silent.
fn check_connected(control: &mut ControlConnection, awaited: &'static str) -> Result<(), Error> {
    match control.byte_until(Nanos::ZERO)? {
        None if control.stop().state() == fathom_engine::Stop::Abort => Err(Error::Interrupted),
        None => Ok(()),
        Some(byte) => {
            let state = control.interpret(byte, awaited)?;
            Err(Error::Unexpected { got: format!("{state:?}"), awaited })
        }
    }
}

fn wait_for_udp_slot<'a>(
    house: &'a ServerState,
    control: &mut ControlConnection,
    guest: &ClientInfo,
    deadline: Nanos,
) -> Result<UdpOpenSlot<'a>, Error> {
    loop {
        if let Some(turn) = UdpOpenSlot::take(&house.udp_open_slots, guest.from.ip()) {
            return Ok(turn);
        }
        check_connected(control, "its turn")?;
        if clock::now() > deadline {
            return Err(Error::Denied { code: code::ACCEPT_STREAM });
        }
        clock::sleep_until(clock::now() + Nanos::from_millis(5));
    }
}

fn start_info(
    control: &ControlConnection,
    guest: &ClientInfo,
    parameters: Parameters,
    open: &[OpenStream],
) -> Result<TestStartInfo, Error> {
    let size = |which| {
        let socket = open.first().map(|open| open.socket.as_ref());
        socket.and_then(|socket| socket::buffer(socket, which).ok()).map_or(Bytes(0), |size| Bytes(size.0 * 2))
    };
    Ok(TestStartInfo {
        control: control.addresses()?,
        cookie: guest.cookie,
        control_mss: parameters.mss,
        parameters,
        buffers: (size(Buffer::Send), size(Buffer::Receive)),
    })
}
