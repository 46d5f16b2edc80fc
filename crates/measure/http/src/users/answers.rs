//! Received answers and their outcome.

use std::mem;

use fathom_model::units::Nanos;
use fathom_sys::reactor::{Reactor, ReceivedBytes};

use super::{
    AnswerDetail, BatchPosition, UserAnswer, UserFailure, UserFailureStage, UserSlot, Users,
    user_connection::{UserConnection, UserState, without_interim},
    user_loop::{NEXT_ROUND, UserLoop},
};
use crate::{
    conn::{Connection, ConnectionHandler, Connector, FaultCause, RequestFault, RequestStage, retry_delay, token},
    h1::{Malformed, Persistence, ResponseProgress, ResponseSummary},
    metrics::LoadCounter,
};

/// The state of a connection after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchProgress {
    /// More answers are to come.
    Within,
    /// After the last of the answers.
    Answered,
    /// The same, and the server takes no more requests on this connection.
    Closes,
}

/// A complete answer.
#[derive(Debug, Clone, Copy)]
struct AnswerEnd<'a> {
    answer: ResponseSummary,
    /// The message as received, if it was requested.
    message: &'a [u8],
    at: Nanos,
}

impl<R: Reactor, U: Users> ConnectionHandler for UserLoop<'_, R, U> {
    type Reactor = R;

    #[inline]
    fn connection(&mut self, seat: usize) -> (&mut Connector<R>, &mut Connection) {
        (&mut self.pool.connector, &mut self.pool.connections[seat].conn)
    }

    fn n_connections(&self) -> usize {
        self.pool.connections.len()
    }

    fn count_received(&mut self, n_bytes: u64) {
        self.pool.recorder.add(LoadCounter::BytesReceived, n_bytes);
    }

    fn count_fault(&mut self, fault: RequestFault) {
        self.pool.recorder.count_fault(fault);
    }

    /// The connection is open; the waiting requests are sent.
    fn on_ready(&mut self, seat: usize, at: Nanos) {
        let hall = &mut self.pool;
        let connection = &mut hall.connections[seat];
        connection.reset_for_new_socket();
        if hall.window.is_over() {
            return hall.close(seat);
        }
        hall.recorder.on_connected(&connection.conn.channel);
        if let Err(fault) = hall.send_kept(seat) {
            self.fail(seat, fault, at);
        }
    }

    /// Handles received bytes, plain or encrypted.
    fn on_received(&mut self, seat: usize, piece: ReceivedBytes, at: Nanos) {
        let followed = self.follow(seat, Some(&piece), at);
        self.pool.connector.reactor.release(piece);
        self.on_progress_made(seat, followed, at);
        self.pool.discard_rest(seat);
    }

    /// Handles decrypted bytes.
    fn on_decrypted(&mut self, seat: usize, at: Nanos) {
        if !self.pool.connector.tls_buffers.plain().is_empty() && self.pool.connections[seat].conn.is_open() {
            let followed = self.follow(seat, None, at);
            self.on_progress_made(seat, followed, at);
        }
    }

    /// Continues after the kernel has discarded a part of a body.
    fn on_discarded(&mut self, seat: usize, count: u64, at: Nanos) {
        if let Some(answer) = self.pool.connections[seat].reader.skip(count) {
            self.on_answer_end(seat, answer, at);
        }
    }

    /// The server has closed the connection, which may be the end of its answer.
    fn on_peer_closed(&mut self, seat: usize, at: Nanos) {
        let connection = &self.pool.connections[seat];
        if let Some(fault) = connection.conn.channel.fault_if_closed() {
            return self.fail(seat, RequestFault::connect(fault), at);
        }
        let Some(pending) = connection.unanswered() else { return self.closed_by_server(seat) };
        if let Some(answer) = connection.reader.finish_at_close() {
            self.pool.recorder.on_answer_ended_by_close(&connection.conn.channel);
            // The connection is closed even if the head promised otherwise.
            return self.on_answer_end(seat, ResponseSummary { persistence: Persistence::Closes, ..answer }, at);
        }
        if connection.may_retry() {
            return self.resend(seat);
        }
        let cause = if pending.first_byte_at.is_none() { FaultCause::Closed } else { FaultCause::ClosedMidAnswer };
        self.fail(seat, RequestFault { stage: RequestStage::Read, cause }, at);
    }

    /// The socket has failed.
    fn on_socket_error(&mut self, seat: usize, error: &fathom_sys::Error, at: Nanos) {
        let connection = &self.pool.connections[seat];
        let stage = match connection.conn.stage() {
            Some(stage) => stage,
            // No request was in flight: this counts as a close, if not an orderly one.
            None if connection.unanswered().is_none() => return self.closed_by_server(seat),
            None if connection.may_retry() => return self.resend(seat),
            None if error.call == "send" => RequestStage::Send,
            None => RequestStage::Read,
        };
        self.fail(seat, RequestFault::system(stage, error), at);
    }

    /// Counts a failure and gives the connection up. Informs the user if it was waiting for an answer.
    fn fail(&mut self, seat: usize, fault: RequestFault, at: Nanos) {
        let Self { users, pool: hall, .. } = self;
        let was_opening = hall.connections[seat].conn.is_opening();
        if was_opening {
            hall.connector.count_failed_connect();
        }
        if hall.recorder.on_failure(fault) {
            hall.window.end(at);
        }
        hall.close(seat);
        let connection = &mut hall.connections[seat];
        match connection.state {
            // The bytes answer no request.
            UserState::Vacant | UserState::Sleeping | UserState::Waiting => return,
            UserState::Acting => return hall.sleep(seat, at + NEXT_ROUND),
            UserState::AwaitingAnswers => {}
        }
        hall.n_busy -= 1;
        connection.n_failures += 1;
        let n_failures = connection.n_failures;
        let sent_at = connection.pending.take().map_or(at, |pending| pending.sent_at);
        let stage = stage(fault, was_opening);
        let failed = UserFailure { cause: hall.fault_text(fault), stage, sent_at, ended_at: at };
        users.failed(UserSlot(token(seat).0), &failed);
        // A connection that had worked is reopened at once, others after a pause, so that a failed server is not flooded with connects.
        let pause = if n_failures == 1 && !was_opening { NEXT_ROUND } else { retry_delay(n_failures) };
        hall.sleep(seat, at + pause);
    }
}

impl<R: Reactor, U: Users> UserLoop<'_, R, U> {
    fn on_progress_made(&mut self, seat: usize, followed: Result<BatchProgress, RequestFault>, at: Nanos) {
        match followed {
            Ok(BatchProgress::Within) => {}
            Ok(BatchProgress::Answered) => self.run_user(seat, at),
            Ok(BatchProgress::Closes) => {
                self.closed_by_server(seat);
                self.run_user(seat, at);
            }
            Err(fault) => self.fail(seat, fault, at),
        }
    }

    /// Follows the answers through a received piece, or through decrypted bytes.
    fn follow(&mut self, seat: usize, piece: Option<&ReceivedBytes>, at: Nanos) -> Result<BatchProgress, RequestFault> {
        let (mut used, mut followed) = (0, BatchProgress::Within);
        loop {
            let hall = &mut self.pool;
            let bytes = &arrived(&hall.connector, piece)[used..];
            if bytes.is_empty() {
                return Ok(followed);
            }
            let connection = &mut hall.connections[seat];
            let pending = connection.pending.as_mut().filter(|pending| pending.is_sent);
            let Some(pending) = pending else { return Err(RequestFault::parse(Malformed::Surplus)) };
            pending.first_byte_at.get_or_insert(at);
            let is_wanted = pending.detail == AnswerDetail::Message;
            let heads = &mut hall.heads[usize::from(connection.conn.upstream)][pending.framing.reader_index()];
            let ResponseProgress::Complete { used: length, answer } =
                connection.reader.take(bytes, heads).map_err(RequestFault::parse)?
            else {
                if is_wanted {
                    connection.append_message(bytes, &mut hall.spare_buffers)?;
                }
                return Ok(followed);
            };
            // A message that began in an earlier piece is assembled; usually the whole message is in this piece.
            let is_gathered = is_wanted && !connection.message.is_empty();
            if is_gathered {
                connection.append_message(&bytes[..length], &mut hall.spare_buffers)?;
            }
            let gathered = mem::take(&mut connection.message);
            hall.record_answer(seat, &answer, at);
            let message = match is_wanted {
                false => &[],
                true if is_gathered => gathered.as_slice(),
                true => &arrived(&hall.connector, piece)[used..used + length],
            };
            followed =
                notify_user(&mut self.users, (&mut hall.connections[seat], seat), &AnswerEnd { answer, message, at })?;
            hall.spare_buffers.give_back(gathered);
            hall.n_busy -= u64::from(followed != BatchProgress::Within);
            used += length;
        }
    }

    /// Handles an answer that ends without visible bytes: with discarded bytes, or with the connection.
    fn on_answer_end(&mut self, seat: usize, answer: ResponseSummary, at: Nanos) {
        let hall = &mut self.pool;
        hall.record_answer(seat, &answer, at);
        let message = mem::take(&mut hall.connections[seat].message);
        let end = AnswerEnd { answer, message: &message, at };
        let followed = notify_user(&mut self.users, (&mut hall.connections[seat], seat), &end);
        hall.spare_buffers.give_back(message);
        hall.n_busy -= u64::from(followed.is_ok_and(|followed| followed != BatchProgress::Within));
        self.on_progress_made(seat, followed, at);
    }

    /// The server takes no further request on a connection, which is allowed after any answer.
    fn closed_by_server(&mut self, seat: usize) {
        self.pool.recorder.add(LoadCounter::ClosedByServer, 1);
        self.pool.close(seat);
    }

    /// The server had closed the connection before it saw the request, so the request is sent once more on a new connection.
    fn resend(&mut self, seat: usize) {
        self.pool.recorder.add(LoadCounter::ClosedByServer, 1);
        self.pool.resend(seat);
    }
}

/// The received bytes: a piece, or decrypted bytes.
fn arrived<'a, R: Reactor>(board: &'a Connector<R>, piece: Option<&ReceivedBytes>) -> &'a [u8] {
    piece.map_or(board.tls_buffers.plain(), |piece| board.reactor.bytes(piece))
}

/// Informs a user of an answer, and returns the state of its connection.
fn notify_user<U: Users>(
    users: &mut U,
    (connection, seat): (&mut UserConnection, usize),
    end: &AnswerEnd<'_>,
) -> Result<BatchProgress, RequestFault> {
    let Some(pending) = &mut connection.pending else { return Ok(BatchProgress::Within) };
    let AnswerEnd { answer, message, at } = *end;
    pending.n_left -= 1;
    let place = if pending.n_left == 0 { BatchPosition::Last } else { BatchPosition::Within };
    let answered = UserAnswer {
        status: answer.status,
        message: without_interim(message, &answer),
        body_bytes: answer.body_bytes,
        sent_at: pending.sent_at,
        first_byte_at: pending.first_byte_at.take().unwrap_or(at),
        ended_at: at,
        position: place,
        connection_number: connection.n_opened.saturating_sub(1),
    };
    users.answered(UserSlot(token(seat).0), &answered);
    (connection.is_used, connection.n_failures) = (true, 0);
    match (place, answer.persistence) {
        (BatchPosition::Within, Persistence::Stays) => return Ok(BatchProgress::Within),
        // The answers after it will not arrive.
        (BatchPosition::Within, Persistence::Closes) => {
            return Err(RequestFault { stage: RequestStage::Read, cause: FaultCause::Closed });
        }
        (BatchPosition::Last, _) => {}
    }
    (connection.pending, connection.state) = (None, UserState::Acting);
    Ok(match answer.persistence {
        Persistence::Stays => BatchProgress::Answered,
        Persistence::Closes => BatchProgress::Closes,
    })
}

/// The stage of a failure, as far as users distinguish it.
fn stage(fault: RequestFault, was_opening: bool) -> UserFailureStage {
    match (fault.stage, fault.cause) {
        _ if was_opening => UserFailureStage::Connect,
        (_, FaultCause::Timeout) => UserFailureStage::Timeout,
        (RequestStage::Send, _) => UserFailureStage::Send,
        _ => UserFailureStage::Read,
    }
}
