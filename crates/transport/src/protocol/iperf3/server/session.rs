//! One client from its parameters to its leave.

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
    affinity, clock,
    socket::{self, Buffer, Socket},
};

use super::reception::{House, Turn, Wants};
use crate::protocol::iperf3::{
    Carrier, Error, Parameters, Results, Way, Wish,
    account::{Beginning, Part, Stream, Watch, id_at},
    client::{GRACE, LONGEST},
    control::{Control, PATIENCE, ends},
    course::{Bounds, Course, Open},
    error::code,
    tune,
    wire::{self, Cookie, State},
};

/// Who has come.
pub(super) struct Guest {
    pub(super) cookie: Cookie,
    pub(super) from: SocketAddr,
    pub(super) wants: Arc<Wants>,
}

/// The most streams of all clients together, a thread each.
const STREAMS_MAX: usize = 1024;
/// How soon a session that waits for streams notices that its client has gone.
const LOOK: Duration = Duration::from_millis(20);

/// Serves one client.
pub(super) fn serve(
    house: &House,
    socket: Socket,
    (guest, streams): (&Guest, &Receiver<Socket>),
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    let mut control = Control::new(socket, house.stop.clone())?;
    let outcome = attend(house, &mut control, (guest, streams), watch);
    if let Err(error) = &outcome {
        // A client that has gone need not be told.
        let _ = match error {
            Error::Denied { code } => control.write(&wire::write_refusal(*code, 0)),
            Error::Authorization => control.write(&wire::write_refusal(code::AUTHORIZATION, 0)),
            Error::Idle => control.write(&wire::write_refusal(code::IDLE, 0)),
            Error::Malformed { what, .. } => {
                let code = if *what == "results" { code::RESULTS } else { code::PARAMETERS };
                control.write(&wire::write_refusal(code, 0))
            }
            Error::Interrupted => control.tell(State::ServerTerminate),
            _ => Ok(()),
        };
    }
    outcome
}

fn attend(
    house: &House,
    control: &mut Control,
    (guest, streams): (&Guest, &Receiver<Socket>),
    watch: &mut dyn Watch,
) -> Result<(), Error> {
    control.tell(State::ParamExchange)?;
    let asked = Parameters::read(&control.read_json("parameters", wire::PARAMETERS_MAX)?)?;
    let parameters = permitted(house, control, &asked)?;
    pin(house, parameters.server_core)?;
    let n = usize::try_from(parameters.n_streams()).expect("at most 256");
    let _share = Threads::take(&house.n_streams, n)?;
    let open = open_streams(house, control, (guest, streams), &parameters)?;
    control.write(&[State::TestStart.byte(), State::TestRunning.byte()])?;
    watch.began(&beginning(control, guest, asked, &open)?, &open.iter().map(|open| open.stream).collect::<Vec<_>>());
    let time = Nanos::from_secs(u64::from(parameters.time_secs) + u64::from(parameters.omit_secs));
    let longest = match house.options.longest_secs {
        _ if parameters.time_secs > 0 => time + GRACE,
        Some(longest) => Nanos::from_secs(longest.into()) + GRACE,
        None => LONGEST,
    };
    let bounds = Bounds {
        interval: house.options.interval,
        idle: house.options.receive_timeout,
        longest,
        rate: house.options.rate,
    };
    let course = Course { side: Side::Responder, parameters: &parameters, streams: &open, bounds };
    let (outcome, why) = course.run(control, watch);
    if parameters.carrier == Carrier::Tcp {
        // Clients before 3.16 read whole blocks even behind the end: the rest of one must not be waited for.
        for open in &open {
            // A connection that is broken already needs no end.
            let _ = open.socket.shutdown(Shutdown::Write);
        }
    }
    watch.ended(&outcome);
    why?;
    control.tell(State::ExchangeResults)?;
    Results::read(&control.read_json("results", wire::RESULTS_MAX)?)?;
    let output = if parameters.wishes.has(Wish::ServerOutput) { watch.output() } else { None };
    control.write(&wire::write_json(&outcome.results(output).write()))?;
    control.tell(State::DisplayResults)?;
    match control.expect(State::Done, "the end") {
        // A client that just goes has its results.
        Err(Error::Closed) => Ok(()),
        outcome => outcome,
    }
}

/// Keeps a test on the core that its client asks for, otherwise on that of the server.
fn pin(house: &House, asked: Option<u32>) -> Result<(), Error> {
    if let Some(core) = asked.and_then(|core| usize::try_from(core).ok()) {
        return affinity::pin_thread(core).map_err(|_| Error::Denied { code: code::AFFINITY });
    }
    Ok(house.options.core.map_or(Ok(()), affinity::pin_thread)?)
}

/// What this server makes of the parameters: refused, or with its own bound on what it sends.
fn permitted(house: &House, control: &Control, asked: &Parameters) -> Result<Parameters, Error> {
    let options = &house.options;
    if let Some(doorkeeper) = &options.doorkeeper {
        let now_secs = clock::wall().0 / 1_000_000_000;
        if !asked.token.as_deref().is_some_and(|token| doorkeeper.admits(token, now_secs)) {
            return Err(Error::Authorization);
        }
    }
    if let Some(longest) = options.longest_secs {
        // A test by volume is bounded by the guard instead.
        if asked.time_secs + asked.omit_secs > longest {
            return Err(Error::Denied { code: code::DURATION_ALLOWED });
        }
    }
    if let Some(name) = &asked.congestion {
        socket::set_congestion(control.socket(), name).map_err(|_| Error::Denied { code: code::CONGESTION })?;
    }
    // Both ways at once would read the file and write it anew.
    if options.file.is_some() && (asked.carrier == Carrier::Udp || asked.way == Way::Both) {
        return Err(Error::Denied { code: code::UNIMPLEMENTED });
    }
    let mut parameters = asked.clone();
    if let Some((most, _)) = options.rate {
        let n = u64::from(asked.n_streams());
        if asked.bitrate.saturating_mul(n) > most {
            return Err(Error::Denied { code: code::TOTAL_RATE });
        }
        if asked.bitrate == 0 {
            // A client that sends faster is broken off; what this server sends keeps the bound by itself.
            parameters.bitrate = (most / n).max(1);
        }
    }
    Ok(parameters)
}

/// A part of the server's threads, given back when it is dropped.
struct Threads<'a>(&'a AtomicUsize, usize);

impl<'a> Threads<'a> {
    fn take(all: &'a AtomicUsize, n: usize) -> Result<Self, Error> {
        let add = |taken: usize| (taken + n <= STREAMS_MAX).then_some(taken + n);
        all.fetch_update(Ordering::AcqRel, Ordering::Acquire, add)
            .map(|_| Self(all, n))
            .map_err(|_| Error::Denied { code: code::STREAMS })
    }
}

impl Drop for Threads<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

/// Asks for the streams and waits until they are there.
fn open_streams(
    house: &House,
    control: &mut Control,
    (guest, streams): (&Guest, &Receiver<Socket>),
    parameters: &Parameters,
) -> Result<Vec<Open>, Error> {
    let n = usize::try_from(parameters.n_streams()).expect("at most 256");
    let deadline = clock::now() + PATIENCE;
    let turn = match parameters.carrier {
        Carrier::Tcp => None,
        Carrier::Udp => Some(wait_for_turn(house, control, (guest, deadline))?),
    };
    let wanted = match parameters.carrier {
        Carrier::Tcp => &guest.wants.connections,
        Carrier::Udp => &guest.wants.datagrams,
    };
    wanted.store(n, Ordering::Release);
    control.tell(State::CreateStreams)?;
    let mut open = Vec::with_capacity(n);
    while open.len() < n {
        match streams.recv_timeout(LOOK) {
            Ok(socket) => {
                tune::accepted(&socket, parameters)?;
                tune::ready(&socket)?;
                let (local, remote) = ends(&socket)?;
                let stream = Stream { id: id_at(open.len()), part: part(parameters, open.len()), local, remote };
                let with_file = Open::new(stream, socket, house.options.file.as_deref());
                open.push(with_file.map_err(|_| Error::Denied { code: code::FILE })?);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                still_there(control, "the streams")?;
                if clock::now() > deadline {
                    return Err(Error::Denied { code: code::ACCEPT_STREAM });
                }
            }
        }
    }
    drop(turn);
    Ok(open)
}

fn part(parameters: &Parameters, place: usize) -> Part {
    let sends = match parameters.way {
        Way::Forward => false,
        Way::Reverse => true,
        Way::Both => place >= usize::try_from(parameters.parallel).expect("at most 128"),
    };
    if sends { Part::Sender } else { Part::Receiver }
}

/// Whether a client that has nothing to say at this point has said nothing.
fn still_there(control: &mut Control, awaited: &'static str) -> Result<(), Error> {
    match control.byte_until(Nanos::ZERO)? {
        None if control.stop().told() == fathom_engine::Stop::Abort => Err(Error::Interrupted),
        None => Ok(()),
        Some(byte) => {
            let state = control.understand(byte, awaited)?;
            Err(Error::Unexpected { got: format!("{state:?}"), awaited })
        }
    }
}

fn wait_for_turn<'a>(
    house: &'a House,
    control: &mut Control,
    (guest, deadline): (&Guest, Nanos),
) -> Result<Turn<'a>, Error> {
    loop {
        if let Some(turn) = Turn::take(&house.turns, guest.from.ip()) {
            return Ok(turn);
        }
        still_there(control, "its turn")?;
        if clock::now() > deadline {
            return Err(Error::Denied { code: code::ACCEPT_STREAM });
        }
        clock::sleep_until(clock::now() + Nanos::from_millis(5));
    }
}

fn beginning(control: &Control, guest: &Guest, parameters: Parameters, open: &[Open]) -> Result<Beginning, Error> {
    let size = |which| {
        let socket = open.first().map(|open| open.socket.as_ref());
        socket.and_then(|socket| socket::buffer(socket, which).ok()).map_or(Bytes(0), |size| Bytes(size.0 * 2))
    };
    Ok(Beginning {
        control: control.ends()?,
        cookie: guest.cookie,
        control_mss: parameters.mss,
        parameters,
        buffers: (size(Buffer::Send), size(Buffer::Receive)),
    })
}
