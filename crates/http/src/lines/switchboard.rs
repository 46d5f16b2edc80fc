//! The worker's way to open lines and to hear what comes on them.

use std::sync::{Arc, atomic::Ordering};

use fathom_engine::Error;
use fathom_model::{Histogram, units::Nanos};
use fathom_sys::reactor::{Event, Piece, Reactor};

use super::{CONNECTING_MAX, Cause, Fault, Faults, Line, Stage, Target, line::State, token};
use crate::dial::{self, Desk, Dialer, Ends, LookedUp, Next, Opened, Place, Step};

/// How long lines took to open, step by step.
#[derive(Debug, Default)]
pub(crate) struct OpeningTimes {
    pub(crate) resolve: Histogram,
    pub(crate) connect: Histogram,
    pub(crate) proxy: Histogram,
    pub(crate) tls: Histogram,
    /// Handshakes of TLS that resumed the session of an earlier one.
    pub(crate) n_resumed: u64,
}

impl OpeningTimes {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.resolve.merge(&other.resolve);
        self.connect.merge(&other.connect);
        self.proxy.merge(&other.proxy);
        self.tls.merge(&other.tls);
        self.n_resumed += other.n_resumed;
    }
}

/// What became of something that was heard on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing that concerns HTTP.
    Nothing,
    /// The line is open now; bytes for HTTP may have come with it.
    Ready,
    /// Bytes for HTTP, which lie on the desk.
    Data,
    /// The same, and they are the last.
    Ended,
}

/// All lines of a worker go through it; they themselves belong to the engine, which keeps more of each.
pub(crate) struct Switchboard<R> {
    pub(crate) reactor: R,
    /// Where encrypted lines leave what was decrypted, and what is to be sent.
    pub(crate) desk: Desk,
    pub(crate) times: OpeningTimes,
    target: Arc<Target>,
    dialer: Dialer,
    n_connecting: usize,
    n_missed: usize,
}

impl<R: Reactor> Switchboard<R> {
    /// That of worker `idx` of `n_workers`, for so many lines; the token behind theirs is that of the bell.
    ///
    /// # Errors
    /// When the kernel gives no reactor, or no threads for lookups.
    pub(crate) fn new(target: &Arc<Target>, (idx, n_workers): (usize, usize), n_lines: usize) -> Result<Self, Error> {
        let system = |cause| Error::System { what: format!("prepare connections over {}", R::NAME), cause };
        let mut reactor = R::new(token(n_lines + 1).0).map_err(system)?;
        let mut dialer = target.dialing.dialer(idx, n_workers)?;
        if let Some(bell) = dialer.bell() {
            reactor.adopt(token(n_lines), bell);
        }
        Ok(Self {
            reactor,
            desk: Desk::default(),
            times: OpeningTimes::default(),
            target: Arc::clone(target),
            dialer,
            n_connecting: 0,
            n_missed: 0,
        })
    }

    /// Whether another connect may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.n_connecting < CONNECTING_MAX
    }

    /// Begins to open a line that is shut.
    ///
    /// # Errors
    /// What kept it from beginning; the line has to be hung up as after every failure.
    pub(crate) fn call(&mut self, idx: usize, line: &mut Line, now: Nanos) -> Result<(), Fault> {
        self.n_connecting += 1;
        line.state = State::Resolving(now);
        match self.dialer.next(usize::from(line.route), token(idx).0, now) {
            Next::Asked => Ok(()),
            Next::Ready(place) => self.connect(idx, line, (&place, now)),
        }
    }

    fn connect(&mut self, idx: usize, line: &mut Line, (place, now): (&Place, Nanos)) -> Result<(), Fault> {
        line.state = State::Connecting(now);
        let socket = place.open().map_err(|error| Fault::system(Stage::Connect, &error))?;
        self.reactor.connect(token(idx), socket, &place.address);
        Ok(())
    }

    /// Takes what the bell of the resolver says; then [`Switchboard::looked_up`] has news.
    pub(crate) fn heard_bell(&mut self, event: Event) {
        if let Event::Received(piece) = event {
            self.reactor.release(piece);
        }
    }

    /// The next answer of the resolver, until there is none; places are for [`Switchboard::found`].
    pub(crate) fn looked_up(&mut self, at: Nanos) -> Option<LookedUp> {
        let looked_up = self.dialer.looked_up(at)?;
        let (LookedUp::Renewed { took, .. } | LookedUp::Place { took, .. }) = &looked_up;
        self.times.resolve.record(took.0);
        Some(looked_up)
    }

    /// Goes on with a line that waited for a place; one that was given up meanwhile has no use for it.
    ///
    /// # Errors
    /// What keeps the line from coming about.
    pub(crate) fn found(
        &mut self,
        idx: usize,
        line: &mut Line,
        (place, at): (Result<Place, dial::Fault>, Nanos),
    ) -> Result<(), Fault> {
        if !matches!(line.state, State::Resolving(_)) {
            return Ok(());
        }
        self.connect(idx, line, (&place.map_err(Fault::dial)?, at))
    }

    /// The socket is connected; what lies between it and HTTP begins.
    ///
    /// # Errors
    /// What keeps the line from coming about.
    pub(crate) fn connected(&mut self, idx: usize, line: &mut Line, at: Nanos) -> Result<Heard, Fault> {
        let State::Connecting(since) = line.state else { return Ok(Heard::Nothing) };
        line.state = State::Opening(at);
        // Kept from the warm-up too: kept-alive connections are opened then, and seldom again.
        self.times.connect.record((at - since).0);
        line.took = at - since;
        line.channel = self.dialer.channel(usize::from(line.route)).map_err(Fault::dial)?;
        let ends = if line.channel.wants_ends() { self.reactor.socket(token(idx)).and_then(ends) } else { None };
        let step = line.channel.opened(ends, at, &mut self.desk);
        self.say(idx);
        self.step(line, step, at)
    }

    /// Takes bytes that came on a line that is not plain.
    ///
    /// # Errors
    /// What ends the line.
    pub(crate) fn take(&mut self, idx: usize, line: &mut Line, (piece, at): (Piece, Nanos)) -> Result<Heard, Fault> {
        let step = line.channel.take(self.reactor.bytes(&piece), at, &mut self.desk);
        self.reactor.release(piece);
        self.say(idx);
        self.step(line, step, at)
    }

    fn step(&mut self, line: &mut Line, step: Result<Step, dial::Fault>, at: Nanos) -> Result<Heard, Fault> {
        Ok(match step.map_err(Fault::dial)? {
            Step::Opening => Heard::Nothing,
            Step::Data => Heard::Data,
            Step::Ended => Heard::Ended,
            Step::Ready(opened) => {
                self.ready(line, opened, at);
                Heard::Ready
            }
        })
    }

    fn ready(&mut self, line: &mut Line, opened: Opened, at: Nanos) {
        let State::Opening(connected_at) = line.state else { return };
        line.state = State::Open;
        line.took += at - connected_at;
        if let Some(proxied_at) = opened.proxied_at {
            self.times.proxy.record((proxied_at - connected_at).0);
        }
        if let Some(secured_at) = opened.secured_at {
            self.times.tls.record((secured_at - opened.proxied_at.unwrap_or(connected_at)).0);
        }
        self.times.n_resumed += u64::from(opened.resumed);
        self.n_connecting -= 1;
        self.target.reached.store(true, Ordering::Relaxed);
    }

    /// Sends what channels have left on the desk to say.
    pub(crate) fn say(&mut self, idx: usize) {
        if !self.desk.out.is_empty() {
            self.reactor.send(token(idx), &self.desk.out);
            self.desk.out.clear();
        }
    }

    /// Closes a line, whatever it is about.
    pub(crate) fn hang_up(&mut self, idx: usize, line: &mut Line) {
        if line.is_open() && !line.channel.is_plain() {
            line.channel.farewell(&mut self.desk);
            self.say(idx);
        }
        self.n_connecting -= usize::from(line.is_opening());
        self.reactor.close(token(idx));
        line.state = State::Shut;
        line.channel = dial::Channel::default();
    }

    /// Takes note that a line did not come about.
    pub(crate) fn missed(&mut self) {
        self.n_missed += 1;
    }

    /// Ends the trial when nothing of the target has ever been reached: there would be nothing to record.
    pub(crate) fn check_reached(&self, n_lines: usize, faults: &Faults) -> Result<(), Error> {
        let many = n_lines.min(CONNECTING_MAX);
        if self.n_missed < many || self.target.reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let plural = if self.n_missed == 1 { "" } else { "s" };
        let what = format!("connect to {}: {} attempt{plural}, none taken", self.target.name, self.n_missed);
        let fault = faults.keys().next();
        let cause = match fault.map(|fault| fault.cause) {
            Some(Cause::Errno(errno)) => std::io::Error::from_raw_os_error(errno),
            Some(Cause::Dial(_) | Cause::NoPort) => {
                let fault = fault.expect("there is one");
                let hint = fault.hint().map(str::to_owned);
                return Err(Error::Unsupported { what: format!("cannot {what}: {fault}"), hint });
            }
            _ => std::io::ErrorKind::TimedOut.into(),
        };
        Err(Error::System { what, cause: fathom_sys::Error::new("connect", cause) })
    }
}

/// Both ends of a TCP connection.
fn ends(socket: &fathom_sys::socket::Socket) -> Option<Ends> {
    Some(Ends { local: socket.local_addr().ok()?.as_socket()?, peer: socket.peer_addr().ok()?.as_socket()? })
}
