//! The users of one worker, in its hall.
//!
//! Users decide in their turns; what they decided is carried out, and what becomes of it is told them before their next turn.
//! A turn follows right behind the last answer; after a failure it comes in the next round, so that no failure leads to another
//! within the same call.

use fathom_engine::{Error, Phase, Stop, pace::Late};
use fathom_model::units::Nanos;
use fathom_sys::{clock, reactor::Reactor};

use super::{Seat, Turn, Users, Window, connection::Doing, hall::Hall};
use crate::{
    books::{Counter, Outcome},
    h1::HeadReader,
    lines::{COMPLETIONS_MAX, Cause, Closing, DRAIN, Fault, Stage, Subscriber, token},
};

/// Behind any time that has come: what happens then happens in the next round.
pub(super) const NEXT: Nanos = Nanos(1);

/// Users and the hall in which they are.
pub(super) struct Gathering<'a, R, U> {
    pub(super) users: U,
    pub(super) hall: Hall<'a, R>,
    /// What users have been told of what counts.
    told: Option<Window>,
}

impl<'a, R: Reactor, U: Users> Gathering<'a, R, U> {
    pub(super) fn new(users: U, hall: Hall<'a, R>) -> Self {
        Self { users, hall, told: None }
    }

    /// Lets users come and ask until the trial is over, then waits shortly for the last answers.
    pub(super) fn run(mut self) -> Result<(Outcome, U::Outcome), Error> {
        loop {
            let now = clock::now();
            if self.is_done(now) {
                return self.conclude(now);
            }
            self.sweep(now);
            self.begin_due(now);
            self.connect_shut();
            let faults = &self.hall.accounts.outcome.faults;
            self.hall.board.check_reached(self.hall.connections.len(), faults)?;
            self.hall.wait(now).map_err(|cause| Error::System { what: "wait for answers".to_owned(), cause })?;
            for _ in 0..COMPLETIONS_MAX {
                let Some(completion) = self.hall.board.reactor.next() else { break };
                self.attend(completion);
                self.attend_due();
            }
        }
    }

    /// Follows the phases of the trial; whether nothing is left to do.
    fn is_done(&mut self, now: Nanos) -> bool {
        let hall = &mut self.hall;
        let phase = hall.accounts.worker.phase();
        hall.measuring = hall.target.is_counted || phase == Phase::Measure;
        if hall.measuring && hall.measured_from.is_none() {
            // Without a warm-up, those who come first count too.
            hall.measured_from = Some(if self.told.is_none() { hall.start } else { now });
        }
        let is_empty = hall.n_seated == 0 && hall.queue.waiting() == 0 && hall.queue.next_due().is_none();
        let is_over = phase == Phase::Over || is_empty || self.users.is_over();
        if is_over && hall.over_at.is_none() {
            hall.over_at = Some(now);
        }
        let window = match (hall.over_at, hall.measuring) {
            (Some(_), _) => Window::Over,
            (None, true) => Window::Measured,
            (None, false) => Window::WarmUp,
        };
        if self.told != Some(window) {
            self.told = Some(window);
            self.users.window(window, now);
        }
        let drain = if hall.stop.told() == Stop::Abort { Nanos::ZERO } else { DRAIN };
        hall.over_at.is_some_and(|at| hall.n_asking == 0 || now >= at + drain)
    }

    /// What is due between two answers: a batch of them may take longer than it is until then.
    fn attend_due(&mut self) {
        if let Some(due) = self.hall.next_due() {
            let now = clock::now();
            if due <= now {
                self.begin_due(now);
            }
        }
    }

    /// Gives those their turn who have rested, or waited, for long enough, and those a seat who are due.
    fn begin_due(&mut self, now: Nanos) {
        if self.hall.over_at.is_some() {
            return;
        }
        if self.hall.pacer.looks(now) {
            if self.hall.next_due().is_some_and(|due| due <= now) {
                self.hall.pacer.started(now);
            }
            while let Some(seat) = self.hall.rested(now) {
                self.turn(seat, now);
            }
            // Turns take their time.
            self.hall.notice(clock::now());
        }
        while let Some(Seat(seat)) = self.users.woken(now) {
            let seat = seat as usize;
            if self.hall.connections[seat].doing == Doing::Waiting {
                self.turn(seat, now);
            }
        }
        while self.hall.queue.waiting() > 0 {
            let Some(seat) = self.hall.free.pop() else { return };
            self.seat(seat as usize);
        }
    }

    /// Gives the one who has been due for longest a seat, and the first turn.
    fn seat(&mut self, seat: usize) {
        let hall = &mut self.hall;
        let now = clock::now();
        let start = hall.queue.start(now - hall.start).expect("somebody waits");
        hall.accounts.add(Counter::Sent, 1);
        match start.late {
            None => {}
            Some(Late::NoConnection) => hall.accounts.add(Counter::LateNoConnection, 1),
            Some(Late::OwnProcessor) => hall.accounts.add(Counter::LateOwnCpu, 1),
        }
        let intended = hall.start + start.intended;
        if hall.measured_from.is_some_and(|from| intended >= from) {
            hall.accounts.outcome.lag.record(start.lag.0);
        }
        hall.occupy(seat);
        self.users.arrive(Seat(token(seat).0), now, start.lag);
        self.turn(seat, now);
    }

    /// Asks the user in a seat what it does next, and does it.
    pub(super) fn turn(&mut self, seat: usize, now: Nanos) {
        let Self { users, hall, .. } = self;
        hall.connections[seat].doing = Doing::Turn;
        if hall.over_at.is_some() {
            return;
        }
        let name = Seat(token(seat).0);
        let asked = match users.turn(name, now) {
            Turn::Ask(ask) => hall.ask(seat, &ask),
            Turn::Rest { until } => {
                hall.rest(seat, until.max(now + NEXT));
                Ok(())
            }
            Turn::Wait => {
                hall.connections[seat].doing = Doing::Waiting;
                Ok(())
            }
            Turn::HangUp => {
                hall.shut(seat);
                hall.rest(seat, now + NEXT);
                Ok(())
            }
            Turn::Leave => {
                hall.leave(seat);
                Ok(())
            }
        };
        if let Err(fault) = asked {
            self.fail(seat, fault, now);
        }
    }

    /// Begins to connect for those who asked without a connection, as far as there may be connects under way.
    fn connect_shut(&mut self) {
        if self.hall.over_at.is_some() {
            return;
        }
        while let Some(seat) = self.hall.next_shut() {
            let now = clock::now();
            let connection = &mut self.hall.connections[seat];
            if let Some(pending) = &mut connection.pending {
                pending.sent_at = now;
            }
            self.call(seat, now);
        }
    }

    /// Ends what has taken too long.
    fn sweep(&mut self, now: Nanos) {
        for seat in self.hall.sweep.due(now, self.hall.connections.len()) {
            let connection = &self.hall.connections[seat];
            let stage = match (connection.line.overdue(now, self.hall.target.timeout), connection.sent()) {
                (Some(stage), _) => stage,
                (None, Some(pending)) if now.since(pending.sent_at) > pending.timeout => {
                    if self.hall.measuring {
                        self.hall.accounts.waited_in_vain(now - pending.sent_at);
                    }
                    Stage::Read
                }
                _ => continue,
            };
            self.fail(seat, Fault { stage, cause: Cause::Timeout }, now);
        }
    }

    /// What is to be told at the end.
    fn conclude(self, now: Nanos) -> Result<(Outcome, U::Outcome), Error> {
        let is_ended = self.hall.over_at.is_some() && self.hall.stop.told() != Stop::Abort;
        let Hall { mut accounts, board, connections, heads, queue, start, measured_from, .. } = self.hall;
        let closing = measured_from.filter(|_| is_ended).map(|from| Closing::of(now, from));
        for connection in &connections {
            let of_connect = closing.and_then(|closing| closing.connect(&connection.line));
            let sent = connection.sent();
            let of_request =
                closing.zip(sent).and_then(|(closing, sent)| closing.request(sent.sent_at, sent.first_byte_at));
            accounts.outcome.n_unfinished += u64::from(sent.is_some() && of_request.is_none());
            of_connect.or(of_request).into_iter().for_each(|fault| accounts.count_fault(fault));
        }
        accounts.outcome.n_not_started = queue.waiting();
        let from = measured_from.unwrap_or(Nanos::MAX);
        for intended in queue.rest().map(|intended| start + intended).filter(|intended| *intended >= from) {
            accounts.outcome.lag.record((now - intended).0);
        }
        let head = heads.iter().flatten().map(HeadReader::last).find(|head| !head.is_empty());
        let outcome = accounts.close(board.times, head.unwrap_or_default())?;
        // The next trial needs the ports.
        board.reactor.abandon();
        Ok((outcome, self.users.conclude(now)))
    }
}
