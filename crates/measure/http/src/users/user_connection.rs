//! The connection of a seat, with what is under way on it.

use fathom_model::units::Nanos;
use fathom_sys::reactor::FixedBuffer;

use super::{AnswerDetail, BodyFraming, UserRequest};
use crate::{
    conn::{Connection, FaultCause, RequestFault, RequestStage},
    h1::{ResponseReader, ResponseSummary},
};

/// More of an answer is not kept: it is a download, and what wants to look at it is better off with its length.
const MESSAGE_MAX: usize = 16 << 20;
/// A request longer than this is not kept to be sent again: thousands of users would keep thousands of them.
pub(super) const RETRY_REQUEST_MAX: usize = 16 * 1024;

/// What the user in a seat is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserState {
    /// Nobody sits there.
    Vacant,
    /// It has its turn, now or when the worker comes to it.
    Acting,
    /// It waits for answers, or for the connection that its requests will go over.
    AwaitingAnswers,
    /// Its rest ends by the clock.
    Sleeping,
    /// It waits until it is woken.
    Waiting,
}

/// Requests that were sent together, as far as they have not been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRequests {
    pub(super) n_left: u16,
    pub(super) n_requests: u16,
    pub(super) framing: BodyFraming,
    pub(super) detail: AnswerDetail,
    /// Whether it stands in the kernel's hands, and not in ours.
    pub(super) is_sent: bool,
    /// Whether a connection that the server had closed was in its way before.
    pub(super) is_retry: bool,
    pub(super) timeout: Nanos,
    /// When it was sent; when the connect for it began, if it is not.
    pub(super) sent_at: Nanos,
    /// When the answer under way began.
    pub(super) first_byte_at: Option<Nanos>,
}

impl PendingRequests {
    pub(super) fn of(ask: &UserRequest<'_>) -> Self {
        Self {
            n_left: ask.n_requests,
            n_requests: ask.n_requests,
            framing: ask.framing,
            detail: ask.detail,
            is_sent: false,
            is_retry: false,
            timeout: ask.timeout,
            sent_at: Nanos::ZERO,
            first_byte_at: None,
        }
    }
}

/// A connection with its user's requests.
#[derive(Debug)]
pub(super) struct UserConnection {
    pub(super) conn: Connection,
    pub(super) reader: ResponseReader,
    pub(super) state: UserState,
    /// Nothing before the first request.
    pub(super) pending: Option<PendingRequests>,
    /// The bytes of what is pending, until they are of no more use.
    pub(super) request: Vec<u8>,
    /// The same, if the reactor keeps them, with their length.
    pub(super) fixed: Option<(FixedBuffer, usize)>,
    /// What has come of an answer that somebody wants to see, if it did not come in one piece.
    pub(super) message: Vec<u8>,
    /// How many connections this user has had.
    pub(super) n_opened: u32,
    /// Failures since the last answer.
    pub(super) n_failures: u32,
    /// Whether there was an answer on this connection.
    pub(super) is_used: bool,
}

impl UserConnection {
    pub(super) fn new() -> Self {
        Self {
            conn: Connection::new(0),
            reader: ResponseReader::default(),
            state: UserState::Vacant,
            pending: None,
            request: Vec::new(),
            fixed: None,
            message: Vec::new(),
            n_opened: 0,
            n_failures: 0,
            is_used: false,
        }
    }

    /// Somebody sits down.
    pub(super) fn begin_user(&mut self) {
        (self.state, self.pending, self.n_opened, self.n_failures) = (UserState::Acting, None, 0, 0);
    }

    /// Ready for the first request on a new socket.
    pub(super) fn reset_for_new_socket(&mut self) {
        self.reader.reset();
        self.message.clear();
        self.is_used = false;
        self.n_opened += 1;
    }

    /// What the kernel has of a request that is not answered yet.
    pub(super) fn unanswered(&self) -> Option<&PendingRequests> {
        self.pending.as_ref().filter(|pending| pending.is_sent && pending.n_left > 0)
    }

    /// Keeps a copy of what is asked until it can be sent, or need not be sent again.
    pub(super) fn keep_request(&mut self, bytes: &[u8]) {
        self.request.clear();
        self.request.extend_from_slice(bytes);
    }

    /// Whether the server may have closed the connection without having seen what was sent last.
    pub(super) fn may_retry(&self) -> bool {
        self.is_used
            && (self.fixed.is_some() || !self.request.is_empty())
            && self.unanswered().is_some_and(|pending| {
                !pending.is_retry && pending.first_byte_at.is_none() && pending.n_left == pending.n_requests
            })
    }

    /// Keeps a part of an answer.
    pub(super) fn append_message(&mut self, bytes: &[u8], spare: &mut SpareBuffers) -> Result<(), RequestFault> {
        if self.message.len() + bytes.len() > MESSAGE_MAX {
            return Err(RequestFault { stage: RequestStage::Read, cause: FaultCause::TooLarge });
        }
        if self.message.capacity() == 0 {
            self.message = spare.take();
        }
        self.message.extend_from_slice(bytes);
        Ok(())
    }
}

/// An answer without the interim ones before it.
pub(super) fn without_interim<'a>(message: &'a [u8], answer: &ResponseSummary) -> &'a [u8] {
    let begin = usize::try_from(answer.interim_bytes).unwrap_or(usize::MAX);
    message.get(begin..).unwrap_or_default()
}

/// Buffers for answers that come in several pieces: few are under way at once, however many users there are.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers(Vec<Vec<u8>>);

impl SpareBuffers {
    /// So many are kept for later.
    const N: usize = 64;
    /// Larger ones are not: the answers of most servers are smaller.
    const BYTES: usize = 256 * 1024;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes a buffer that is done with.
    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if (1..=Self::BYTES).contains(&buffer.capacity()) && self.0.len() < Self::N {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_thousand_users_fit_in_a_few_mebibytes() {
        // A place among the rests, the free seats and those that wait to connect comes with each.
        let with_queues = size_of::<UserConnection>() + size_of::<(Nanos, u32)>() + 2 * size_of::<u32>();
        assert!(with_queues <= 512, "{with_queues}");
    }

    #[test]
    fn what_is_kept_of_an_answer_has_a_bound() {
        let (mut connection, mut spare) = (UserConnection::new(), SpareBuffers::default());
        let piece = vec![0; 1 << 20];
        for _ in 0..16 {
            connection.append_message(&piece, &mut spare).unwrap();
        }
        assert_eq!(connection.append_message(b"x", &mut spare).map_err(|fault| fault.cause), Err(FaultCause::TooLarge));
    }

    #[test]
    fn buffers_of_answers_are_used_again() {
        let (mut connection, mut spare) = (UserConnection::new(), SpareBuffers::default());
        connection.append_message(&[0; 1000], &mut spare).unwrap();
        let buffer = std::mem::take(&mut connection.message);
        let place = buffer.as_ptr();
        spare.give_back(buffer);
        spare.give_back(Vec::new());
        connection.append_message(b"x", &mut spare).unwrap();
        assert_eq!((connection.message.as_ptr(), connection.message.as_slice()), (place, b"x".as_slice()));
    }
}
