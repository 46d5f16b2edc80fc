//! Answers on their way in, and what became of them.

use std::mem;

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Piece, Reactor};

use super::{
    Answered, Failed, FailedStage, Place, Seat, Users, Wants,
    connection::{Connection, Doing, without_interim},
    gathering::{Gathering, NEXT},
};
use crate::{
    books::Counter,
    h1::{Answer, Malformed, Persistence, Progress},
    lines::{Cause, Fault, Line, Stage, Subscriber, Switchboard, pause, token},
};

/// Where a connection stands after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Followed {
    /// Answers are still to come.
    Within,
    /// Behind the last of the answers.
    Answered,
    /// The same, and the server takes no more requests on this connection.
    Closes,
}

/// An answer that has come to its end.
#[derive(Debug, Clone, Copy)]
struct End<'a> {
    answer: Answer,
    /// As it came, if it was wanted.
    message: &'a [u8],
    at: Nanos,
}

impl<R: Reactor, U: Users> Subscriber for Gathering<'_, R, U> {
    type Reactor = R;

    #[inline]
    fn line(&mut self, seat: usize) -> (&mut Switchboard<R>, &mut Line) {
        (&mut self.hall.board, &mut self.hall.connections[seat].line)
    }

    fn n_lines(&self) -> usize {
        self.hall.connections.len()
    }

    fn count_received(&mut self, n_bytes: u64) {
        self.hall.accounts.add(Counter::BytesReceived, n_bytes);
    }

    fn count_fault(&mut self, fault: Fault) {
        self.hall.accounts.count_fault(fault);
    }

    /// A connection is there, and what waited for it is sent.
    fn ready(&mut self, seat: usize, at: Nanos) {
        let hall = &mut self.hall;
        let connection = &mut hall.connections[seat];
        connection.begin();
        if hall.over_at.is_some() {
            return hall.shut(seat);
        }
        hall.accounts.connected(&connection.line.channel);
        if let Err(fault) = hall.send_kept(seat) {
            self.fail(seat, fault, at);
        }
    }

    /// What has arrived, plain or not.
    fn received(&mut self, seat: usize, piece: Piece, at: Nanos) {
        let followed = self.follow(seat, Some(&piece), at);
        self.hall.board.reactor.release(piece);
        self.followed(seat, followed, at);
        self.hall.discard_rest(seat);
    }

    /// What a channel has decrypted.
    fn decrypted(&mut self, seat: usize, at: Nanos) {
        if !self.hall.board.desk.plain().is_empty() && self.hall.connections[seat].line.is_open() {
            let followed = self.follow(seat, None, at);
            self.followed(seat, followed, at);
        }
    }

    /// Goes on where a part of a body was thrown away.
    fn discarded(&mut self, seat: usize, count: u64, at: Nanos) {
        if let Some(answer) = self.hall.connections[seat].reader.skip(count) {
            self.ends_with(seat, answer, at);
        }
    }

    /// The server has ended the connection, which may be the end of its answer.
    fn ended(&mut self, seat: usize, at: Nanos) {
        let connection = &self.hall.connections[seat];
        if let Some(fault) = connection.line.channel.cut() {
            return self.fail(seat, Fault::dial(fault), at);
        }
        let Some(pending) = connection.sent() else { return self.closed_by_server(seat) };
        if let Some(answer) = connection.reader.end() {
            self.hall.accounts.ends_with_connection(&connection.line.channel);
            // Whatever its head says of the connection.
            return self.ends_with(seat, Answer { persistence: Persistence::Closes, ..answer }, at);
        }
        if connection.may_repeat() {
            return self.repeat(seat);
        }
        let cause = if pending.first_byte_at.is_none() { Cause::Closed } else { Cause::Cut };
        self.fail(seat, Fault { stage: Stage::Read, cause }, at);
    }

    /// The socket does not work any more.
    fn broken(&mut self, seat: usize, error: &fathom_sys::Error, at: Nanos) {
        let connection = &self.hall.connections[seat];
        let stage = match connection.line.stage() {
            Some(stage) => stage,
            // Nobody asked for anything: it is closed, if not politely.
            None if connection.sent().is_none() => return self.closed_by_server(seat),
            None if connection.may_repeat() => return self.repeat(seat),
            None if error.call == "send" => Stage::Send,
            None => Stage::Read,
        };
        self.fail(seat, Fault::system(stage, error), at);
    }

    /// Counts a failure, gives the connection up, and tells the user if it was waiting for an answer.
    fn fail(&mut self, seat: usize, fault: Fault, at: Nanos) {
        let Self { users, hall, .. } = self;
        let was_opening = hall.connections[seat].line.is_opening();
        if was_opening {
            hall.board.missed();
        }
        if hall.accounts.failed(fault) {
            hall.over_at.get_or_insert(at);
        }
        hall.shut(seat);
        let connection = &mut hall.connections[seat];
        match connection.doing {
            // Nobody asked for what came.
            Doing::Vacant | Doing::Resting | Doing::Waiting => return,
            Doing::Turn => return hall.rest(seat, at + NEXT),
            Doing::Asking => {}
        }
        hall.n_asking -= 1;
        connection.n_failures += 1;
        let n_failures = connection.n_failures;
        let sent_at = connection.pending.take().map_or(at, |pending| pending.sent_at);
        let stage = stage(fault, was_opening);
        let failed = Failed { cause: hall.words(fault), stage, sent_at, ended_at: at };
        users.failed(Seat(token(seat).0), &failed);
        // A connection that had worked is opened anew at once, others after a pause: a server that is down is not stormed.
        let pause = if n_failures == 1 && !was_opening { NEXT } else { pause(n_failures) };
        hall.rest(seat, at + pause);
    }
}

impl<R: Reactor, U: Users> Gathering<'_, R, U> {
    fn followed(&mut self, seat: usize, followed: Result<Followed, Fault>, at: Nanos) {
        match followed {
            Ok(Followed::Within) => {}
            Ok(Followed::Answered) => self.turn(seat, at),
            Ok(Followed::Closes) => {
                self.closed_by_server(seat);
                self.turn(seat, at);
            }
            Err(fault) => self.fail(seat, fault, at),
        }
    }

    /// Follows the answers through a piece, or through what was decrypted.
    fn follow(&mut self, seat: usize, piece: Option<&Piece>, at: Nanos) -> Result<Followed, Fault> {
        let (mut used, mut followed) = (0, Followed::Within);
        loop {
            let hall = &mut self.hall;
            let bytes = &arrived(&hall.board, piece)[used..];
            if bytes.is_empty() {
                return Ok(followed);
            }
            let connection = &mut hall.connections[seat];
            let pending = connection.pending.as_mut().filter(|pending| pending.is_sent);
            let Some(pending) = pending else { return Err(Fault::parse(Malformed::Surplus)) };
            pending.first_byte_at.get_or_insert(at);
            let is_wanted = pending.wants == Wants::Message;
            let heads = &mut hall.heads[usize::from(connection.line.route)][pending.framing.place()];
            let Progress::Complete { used: length, answer } =
                connection.reader.take(bytes, heads).map_err(Fault::parse)?
            else {
                if is_wanted {
                    connection.gather(bytes, &mut hall.spare)?;
                }
                return Ok(followed);
            };
            // What began in an earlier piece is put together; as a rule nothing did, and the message lies in this one.
            let is_gathered = is_wanted && !connection.message.is_empty();
            if is_gathered {
                connection.gather(&bytes[..length], &mut hall.spare)?;
            }
            let gathered = mem::take(&mut connection.message);
            hall.count(seat, &answer, at);
            let message = match is_wanted {
                false => &[],
                true if is_gathered => gathered.as_slice(),
                true => &arrived(&hall.board, piece)[used..used + length],
            };
            followed = told(&mut self.users, (&mut hall.connections[seat], seat), &End { answer, message, at })?;
            hall.spare.give(gathered);
            hall.n_asking -= u64::from(followed != Followed::Within);
            used += length;
        }
    }

    /// An answer has ended where no bytes show it: with those thrown away, or with the connection.
    fn ends_with(&mut self, seat: usize, answer: Answer, at: Nanos) {
        let hall = &mut self.hall;
        hall.count(seat, &answer, at);
        let message = mem::take(&mut hall.connections[seat].message);
        let end = End { answer, message: &message, at };
        let followed = told(&mut self.users, (&mut hall.connections[seat], seat), &end);
        hall.spare.give(message);
        hall.n_asking -= u64::from(followed.is_ok_and(|followed| followed != Followed::Within));
        self.followed(seat, followed, at);
    }

    /// The server takes no further request on a connection, as it may say after any answer.
    fn closed_by_server(&mut self, seat: usize) {
        self.hall.accounts.add(Counter::ClosedByServer, 1);
        self.hall.shut(seat);
    }

    /// The server had closed the connection before it saw what was sent: that goes out once more, over a new one.
    fn repeat(&mut self, seat: usize) {
        self.hall.accounts.add(Counter::ClosedByServer, 1);
        self.hall.repeat(seat);
    }
}

/// What has arrived: a piece, or what was decrypted.
fn arrived<'a, R: Reactor>(board: &'a Switchboard<R>, piece: Option<&Piece>) -> &'a [u8] {
    piece.map_or(board.desk.plain(), |piece| board.reactor.bytes(piece))
}

/// Tells a user of an answer, and where its connection stands then.
fn told<U: Users>(
    users: &mut U,
    (connection, seat): (&mut Connection, usize),
    end: &End<'_>,
) -> Result<Followed, Fault> {
    let Some(pending) = &mut connection.pending else { return Ok(Followed::Within) };
    let End { answer, message, at } = *end;
    pending.n_left -= 1;
    let place = if pending.n_left == 0 { Place::Last } else { Place::Within };
    let answered = Answered {
        status: answer.status,
        message: without_interim(message, &answer),
        body_bytes: answer.body_bytes,
        sent_at: pending.sent_at,
        first_byte_at: pending.first_byte_at.take().unwrap_or(at),
        ended_at: at,
        place,
        nth_connection: connection.n_opened.saturating_sub(1),
    };
    users.answered(Seat(token(seat).0), &answered);
    (connection.is_used, connection.n_failures) = (true, 0);
    match (place, answer.persistence) {
        (Place::Within, Persistence::Stays) => return Ok(Followed::Within),
        // The answers behind it do not come any more.
        (Place::Within, Persistence::Closes) => return Err(Fault { stage: Stage::Read, cause: Cause::Closed }),
        (Place::Last, _) => {}
    }
    (connection.pending, connection.doing) = (None, Doing::Turn);
    Ok(match answer.persistence {
        Persistence::Stays => Followed::Answered,
        Persistence::Closes => Followed::Closes,
    })
}

/// Where a request failed, as far as users tell that apart.
fn stage(fault: Fault, was_opening: bool) -> FailedStage {
    match (fault.stage, fault.cause) {
        _ if was_opening => FailedStage::Connect,
        (_, Cause::Timeout) => FailedStage::Timeout,
        (Stage::Send, _) => FailedStage::Send,
        _ => FailedStage::Read,
    }
}
