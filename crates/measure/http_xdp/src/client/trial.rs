//! One connection through the program before the load, which shows that its frames leave and that answers reach it.

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::{clock, netlink::ethtool};

use super::{claim::Claim, error::refusal, outbox::Outbox, rows, slow::SlowPath};
use crate::{
    machine::{Connection, Event, Send, State, Step},
    program::{Counts, LoadProgram, LoadSetup},
};

/// On a lossy path, one of so many attempts goes well.
const N_ATTEMPTS: u32 = 3;
/// How long an attempt waits for its answer, and then for the end of its connection: a round trip around the earth, and a slow server.
const PATIENCE: Nanos = Nanos::from_secs(1);
const STEP: Nanos = Nanos::from_millis(1);
/// When a SYN is sent again. Nothing else is, since that would wake a device that has not sent the program's frames.
const SYN_AGAIN: Nanos = Nanos::from_millis(200);
/// The slot of the attempts.
const SLOT: u32 = 0;

/// A load before it runs.
pub(super) struct Trial<'a> {
    pub(super) program: &'a LoadProgram,
    pub(super) setup: &'a LoadSetup,
    pub(super) device: &'a str,
    pub(super) slow: &'a mut SlowPath,
    pub(super) claim: &'a mut Option<Claim>,
    pub(super) outbox: &'a mut Outbox,
}

/// What became of an attempt.
enum Attempt {
    Answered,
    /// The connection ended without an answer.
    Refused,
    /// Nothing happened any more in this state.
    Silent(State),
}

impl Trial<'_> {
    /// Asks one request through the program and closes the connection; the program has been told that nothing follows.
    pub(super) fn run(mut self) -> Result<(), Error> {
        let mut furthest = State::SynSent;
        for _ in 0..N_ATTEMPTS {
            match self.attempt()? {
                Attempt::Answered => return Ok(()),
                Attempt::Refused => return Err(refused_by_server(&self.slow.counts(self.program)?, self.setup)),
                Attempt::Silent(State::SynSent) => {}
                Attempt::Silent(state) => furthest = state,
            }
        }
        if self.slow.n_too_long()? > 0 {
            return Err(too_long(self.device));
        }
        let Self { setup, device, .. } = self;
        Err(if furthest == State::SynSent { no_answer(setup, device) } else { not_sent(device) })
    }

    fn attempt(&mut self) -> Result<Attempt, Error> {
        let row = self.program.rows.row(SLOT);
        let mut connection = rows::read(row);
        let mut syn = Step::default();
        connection.open(clock::now().0, self.setup.rules, &mut syn);
        rows::open(row, &connection);
        self.send(&connection, &syn)?;
        let has_ended = self.wait_for_answer(&connection, &syn)?;
        let is_answered = self.is_answered()?;
        connection = rows::read(row);
        let state = connection.state;
        if state == State::Idle {
            let fin = connection.close(clock::now().0);
            rows::start(row, &connection);
            self.send(&connection, &fin)?;
        }
        if is_answered {
            wait_until(|| {
                self.slow.tend((self.program, self.setup), self.outbox)?;
                Ok(rows::read(row).state == State::Closed)
            })?;
        }
        self.end()?;
        Ok(match (is_answered, has_ended) {
            (true, _) => Attempt::Answered,
            (false, true) => Attempt::Refused,
            (false, false) => Attempt::Silent(state),
        })
    }

    /// Sends the SYN again until it is answered; returns whether the request was answered or the connection ended.
    fn wait_for_answer(&mut self, connection: &Connection, syn: &Step) -> Result<bool, Error> {
        let row = self.program.rows.row(SLOT);
        let mut syn_again_at = clock::now() + SYN_AGAIN;
        wait_until(|| {
            if let Some(claim) = self.claim.as_mut() {
                claim.answer(self.outbox)?;
            }
            self.slow.tend((self.program, self.setup), self.outbox)?;
            if rows::read(row).state == State::SynSent && clock::now() >= syn_again_at {
                self.send(connection, syn)?;
                syn_again_at = clock::now() + SYN_AGAIN;
            }
            Ok(self.is_answered()? || rows::read(row).state == State::Closed)
        })
    }

    fn is_answered(&self) -> Result<bool, Error> {
        Ok(self.slow.counts(self.program)?.n(Event::Answered) > 0)
    }

    /// Ends whatever is left of an attempt.
    fn end(&mut self) -> Result<(), Error> {
        let row = self.program.rows.row(SLOT);
        if rows::read(row).state == State::Closed {
            return Ok(());
        }
        rows::take(row);
        clock::sleep_until(clock::now() + STEP);
        let mut connection = rows::read(row);
        let step = connection.give_up();
        rows::open(row, &connection);
        rows::give_back_closed(row);
        self.send(&connection, &step)
    }

    fn send(&mut self, connection: &Connection, step: &Step) -> Result<(), Error> {
        debug_assert_ne!(step.send, Send::Nothing, "each of these steps sends something");
        self.outbox.push(self.setup.ends.frame(step, self.setup.slots.place(SLOT, connection.port_idx)))?;
        self.outbox.flush()
    }
}

/// Waits until something has happened, at most for [`PATIENCE`]; returns whether it has.
fn wait_until(mut has_happened: impl FnMut() -> Result<bool, Error>) -> Result<bool, Error> {
    let deadline = clock::now() + PATIENCE;
    loop {
        if has_happened()? {
            return Ok(true);
        }
        if clock::now() >= deadline {
            return Ok(false);
        }
        clock::sleep_until(clock::now() + STEP);
    }
}

/// The connection ended without an answer.
fn refused_by_server(counts: &Counts, setup: &LoadSetup) -> Error {
    let server = setup.ends.server;
    for (event, what) in [
        (Event::Reset, "resets the connection"),
        (Event::ClosedEarly, "closes the connection before the answer has ended"),
        (Event::UnknownAnswer, "sends what is no answer"),
        (Event::Excess, "sends more than the answer that its head announces"),
    ] {
        if counts.n(event) > 0 {
            return refusal(format!("{server} answered over a socket, but {what} without one"));
        }
    }
    refusal(format!("{server} answered over a socket, but not without one"))
}

/// No SYN-ACK came to the program.
fn no_answer(setup: &LoadSetup, device: &str) -> Error {
    let from = setup.slots.place(SLOT, 0).ip();
    Error::Unsupported {
        what: format!(
            "no answer to our SYNs from {from} comes back to {device}, although the server answers over a socket"
        ),
        hint: Some(format!(
            "check the server's way back: ip route get {from}, on the server; a firewall may drop it too"
        )),
    }
}

/// The answer went to the slow path, whose sockets do not take its frames.
fn too_long(device: &str) -> Error {
    Error::Unsupported {
        what: "frames of the answer are longer than an AF_XDP socket takes (3,840 bytes): GRO here, or TSO of the other end of a veth, joins \
               segments"
            .to_owned(),
        hint: Some(format!(
            "ethtool -K {device} gro off; for a veth also ethtool -K PEER tso off gso off on its other end; or --engine sockets"
        )),
    }
}

/// A SYN-ACK came, and the program's request went nowhere.
fn not_sent(device: &str) -> Error {
    let peer = ethtool::Device::open(device).and_then(|device| device.statistics()).ok();
    let peer =
        peer.and_then(|counts| counts.into_iter().find(|(name, _)| name == "peer_ifindex")).map(|(_, index)| index);
    match peer {
        Some(index) => Error::Unsupported {
            what: format!(
                "the frames of the program do not leave {device}: it is a veth, and its other end (device {index} there) has no XDP \
                 program, without which it does not look for them"
            ),
            hint: Some(
                "there, a program that lets everything else pass, such as fathom serve --only http --http-xdp DEVICE --http-xdp-from CIDR; \
                 or here --xdp generic, which needs none; or --engine sockets"
                    .to_owned(),
            ),
        },
        None => refusal(format!(
            "the frames of the program do not leave {device}: its driver does not send what XDP returns (XDP_TX)"
        )),
    }
}
