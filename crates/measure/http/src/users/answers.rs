//! Received answers and their outcome.

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
    fn connection(&mut self, slot: usize) -> (&mut Connector<R>, &mut Connection) {
        (&mut self.pool.connector, &mut self.pool.connections[slot].conn)
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
    fn on_ready(&mut self, slot: usize, at: Nanos) {
        let pool = &mut self.pool;
        let connection = &mut pool.connections[slot];
        connection.reset_for_new_socket();
        if pool.load.window().is_over() {
            return pool.close(slot);
        }
        pool.recorder.on_connected(&connection.conn.channel);
        if let Err(fault) = pool.send_kept(slot) {
            self.fail(slot, fault, at);
        }
    }

    /// Handles received bytes, plain or encrypted.
    fn on_received(&mut self, slot: usize, piece: ReceivedBytes, at: Nanos) {
        let followed = self.follow(slot, Some(&piece), at);
        self.pool.connector.reactor.release(piece);
        self.on_progress_made(slot, followed, at);
        self.pool.discard_rest(slot);
    }

    /// Handles decrypted bytes.
    fn on_decrypted(&mut self, slot: usize, at: Nanos) {
        if !self.pool.connector.tls_buffers.plain().is_empty() && self.pool.connections[slot].conn.is_open() {
            let followed = self.follow(slot, None, at);
            self.on_progress_made(slot, followed, at);
        }
    }

    /// Continues after the kernel has discarded a part of a body.
    fn on_discarded(&mut self, slot: usize, count: u64, at: Nanos) {
        if let Some(answer) = self.pool.connections[slot].reader.skip(count) {
            self.on_answer_end(slot, answer, at);
        }
    }

    /// The server has closed the connection, which may be the end of its answer.
    fn on_peer_closed(&mut self, slot: usize, at: Nanos) {
        let connection = &self.pool.connections[slot];
        if let Some(fault) = connection.conn.channel.fault_if_closed() {
            return self.fail(slot, RequestFault::connect(fault), at);
        }
        let Some(pending) = connection.unanswered() else { return self.closed_by_server(slot) };
        if let Some(answer) = connection.reader.finish_at_close() {
            self.pool.recorder.on_answer_ended_by_close(&connection.conn.channel);
            // The connection is closed even if the head promised otherwise.
            return self.on_answer_end(slot, ResponseSummary { persistence: Persistence::Closes, ..answer }, at);
        }
        if connection.may_retry() {
            return self.resend(slot);
        }
        let cause = if pending.first_byte_at.is_none() { FaultCause::Closed } else { FaultCause::ClosedMidAnswer };
        self.fail(slot, RequestFault { stage: RequestStage::Read, cause }, at);
    }

    /// The socket has failed.
    fn on_socket_error(&mut self, slot: usize, error: &fathom_sys::Error, at: Nanos) {
        let connection = &self.pool.connections[slot];
        let stage = match connection.conn.stage() {
            Some(stage) => stage,
            // No request was in flight: this counts as a close, if not an orderly one.
            None if connection.unanswered().is_none() => return self.closed_by_server(slot),
            None if connection.may_retry() => return self.resend(slot),
            None if error.call == "send" => RequestStage::Send,
            None => RequestStage::Read,
        };
        self.fail(slot, RequestFault::system(stage, error), at);
    }

    /// Counts a failure and gives the connection up. Informs the user if it was waiting for an answer.
    fn fail(&mut self, slot: usize, fault: RequestFault, at: Nanos) {
        let Self { users, pool, .. } = self;
        let was_opening = pool.connections[slot].conn.is_opening();
        if was_opening {
            pool.connector.count_failed_connect(slot);
        }
        if pool.recorder.on_failure(fault) {
            pool.load.end(at);
        }
        pool.close(slot);
        let connection = &mut pool.connections[slot];
        match connection.state {
            // The bytes answer no request.
            UserState::Vacant | UserState::Sleeping | UserState::Waiting => return,
            UserState::Acting => return pool.sleep(slot, at + NEXT_ROUND),
            UserState::AwaitingAnswers => {}
        }
        pool.load.n_in_flight -= 1;
        connection.n_failures += 1;
        let n_failures = connection.n_failures;
        let sent_at = connection.pending.take().map_or(at, |pending| pending.sent_at);
        let stage = stage(fault, was_opening);
        let failed = UserFailure { cause: pool.fault_text(fault), stage, sent_at, ended_at: at };
        users.failed(UserSlot(token(slot).0), &failed);
        // A connection that had worked is reopened at once, others after a pause, so that a failed server is not flooded with connects.
        let pause = if n_failures == 1 && !was_opening { NEXT_ROUND } else { retry_delay(n_failures) };
        pool.sleep(slot, at + pause);
    }
}

impl<R: Reactor, U: Users> UserLoop<'_, R, U> {
    fn on_progress_made(&mut self, slot: usize, followed: Result<BatchProgress, RequestFault>, at: Nanos) {
        match followed {
            Ok(BatchProgress::Within) => {}
            Ok(BatchProgress::Answered) => self.run_user(slot, at),
            Ok(BatchProgress::Closes) => {
                self.closed_by_server(slot);
                self.run_user(slot, at);
            }
            Err(fault) => self.fail(slot, fault, at),
        }
    }

    /// Follows the answers through a received piece, or through decrypted bytes.
    fn follow(&mut self, slot: usize, piece: Option<&ReceivedBytes>, at: Nanos) -> Result<BatchProgress, RequestFault> {
        let (mut used, mut followed) = (0, BatchProgress::Within);
        loop {
            let pool = &mut self.pool;
            let bytes = &arrived(&pool.connector, piece)[used..];
            if bytes.is_empty() {
                return Ok(followed);
            }
            let connection = &mut pool.connections[slot];
            let pending = connection.pending.as_mut().filter(|pending| pending.is_sent);
            let Some(pending) = pending else { return Err(RequestFault::parse(Malformed::Surplus)) };
            pending.first_byte_at.get_or_insert(at);
            let is_wanted = pending.detail != AnswerDetail::Status;
            let heads = &mut pool.heads[usize::from(connection.conn.upstream)][pending.framing.reader_index()];
            let ResponseProgress::Complete { used: length, answer } =
                connection.reader.take(bytes, heads).map_err(RequestFault::parse)?
            else {
                if is_wanted {
                    connection.append_message(bytes, &mut pool.spare_buffers)?;
                }
                return Ok(followed);
            };
            // A message that began in an earlier piece is assembled; usually the whole message is in this piece.
            let is_gathered = is_wanted && !connection.message.is_empty();
            if is_gathered {
                connection.append_message(&bytes[..length], &mut pool.spare_buffers)?;
            }
            let gathered = connection.take_message();
            pool.record_answer(slot, &answer, at);
            let message = match is_wanted {
                false => &[],
                true if is_gathered => gathered.as_slice(),
                true => &arrived(&pool.connector, piece)[used..used + length],
            };
            followed =
                notify_user(&mut self.users, &mut pool.connections[slot], slot, &AnswerEnd { answer, message, at })?;
            pool.spare_buffers.give_back(gathered);
            pool.load.n_in_flight -= u64::from(followed != BatchProgress::Within);
            used += length;
        }
    }

    /// Handles an answer that ends without visible bytes: with discarded bytes, or with the connection.
    fn on_answer_end(&mut self, slot: usize, answer: ResponseSummary, at: Nanos) {
        let pool = &mut self.pool;
        pool.record_answer(slot, &answer, at);
        let message = pool.connections[slot].take_message();
        let end = AnswerEnd { answer, message: &message, at };
        let followed = notify_user(&mut self.users, &mut pool.connections[slot], slot, &end);
        pool.spare_buffers.give_back(message);
        pool.load.n_in_flight -= u64::from(followed.is_ok_and(|followed| followed != BatchProgress::Within));
        self.on_progress_made(slot, followed, at);
    }

    /// The server takes no further request on a connection, which is allowed after any answer.
    fn closed_by_server(&mut self, slot: usize) {
        self.pool.recorder.add(LoadCounter::ClosedByServer, 1);
        self.pool.close(slot);
    }

    /// The server had closed the connection before it saw the request, so the request is sent once more on a new connection.
    fn resend(&mut self, slot: usize) {
        self.pool.recorder.add(LoadCounter::ClosedByServer, 1);
        self.pool.resend(slot);
    }
}

/// The received bytes: a piece, or decrypted bytes.
fn arrived<'a, R: Reactor>(connector: &'a Connector<R>, piece: Option<&ReceivedBytes>) -> &'a [u8] {
    piece.map_or(connector.tls_buffers.plain(), |piece| connector.reactor.bytes(piece))
}

/// Informs a user of an answer, and returns the state of its connection.
fn notify_user<U: Users>(
    users: &mut U,
    connection: &mut UserConnection,
    slot: usize,
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
    users.answered(UserSlot(token(slot).0), &answered);
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
