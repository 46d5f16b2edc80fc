//! The connection of a slot, with its requests in flight.

use fathom_model::units::Nanos;
use fathom_sys::reactor::FixedBuffer;

use super::{AnswerDetail, BodyFraming, UserRequest};
use crate::{
    conn::{Connection, FaultCause, RequestFault, RequestStage},
    h1::{ResponseReader, ResponseSummary},
};

/// The most bytes kept of an answer. A longer one is a download, and scripts should only look at its length.
const MESSAGE_MAX: usize = 16 << 20;
/// What is kept of a longer one if its beginning is wanted: more than a head has.
const BEGINNING_MAX: usize = 512 << 10;
/// A longer request is not kept for a retry: thousands of users would keep thousands of them.
pub(super) const RETRY_REQUEST_MAX: usize = 16 * 1024;

/// The state of the user in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UserState {
    /// The slot is free.
    Vacant,
    /// It runs now, or when the worker reaches it.
    Acting,
    /// It waits for answers, or for the connection that its requests will use.
    AwaitingAnswers,
    /// It rests until a given time.
    Sleeping,
    /// It waits until it is woken.
    Waiting,
}

/// Unanswered requests that were sent together.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingRequests {
    pub(super) n_left: u16,
    pub(super) n_requests: u16,
    pub(super) framing: BodyFraming,
    pub(super) detail: AnswerDetail,
    /// Whether the requests have been handed to the kernel.
    pub(super) is_sent: bool,
    /// Whether this is a retry after the server had closed the connection.
    pub(super) is_retry: bool,
    pub(super) timeout: Nanos,
    pub(super) may_repeat: bool,
    /// When it was sent, or when the connect for it began if it was not sent.
    pub(super) sent_at: Nanos,
    /// When the first byte of the current answer arrived.
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
            may_repeat: ask.may_repeat,
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
    /// `None` before the first request.
    pub(super) pending: Option<PendingRequests>,
    /// The bytes of the pending requests, while they are needed.
    pub(super) request: Vec<u8>,
    /// The registered buffer of the requests, if there is one, with its length.
    pub(super) fixed: Option<(FixedBuffer, usize)>,
    /// The received part of an answer to be kept, if it did not arrive in one piece.
    pub(super) message: Vec<u8>,
    /// Whether only the beginning of this answer is kept.
    pub(super) is_message_cut: bool,
    /// The number of connections this user has opened.
    pub(super) n_opened: u32,
    /// Failures since the last answer.
    pub(super) n_failures: u32,
    /// Whether this connection has had an answer.
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
            is_message_cut: false,
            n_opened: 0,
            n_failures: 0,
            is_used: false,
        }
    }

    /// A new user takes the slot.
    pub(super) fn begin_user(&mut self) {
        (self.state, self.pending, self.n_opened, self.n_failures) = (UserState::Acting, None, 0, 0);
    }

    /// Resets it for the first request on a new socket.
    pub(super) fn reset_for_new_socket(&mut self) {
        self.reader.reset();
        self.message.clear();
        self.is_message_cut = false;
        self.is_used = false;
        self.n_opened += 1;
    }

    /// The requests that the kernel has taken and that are not fully answered.
    pub(super) fn unanswered(&self) -> Option<&PendingRequests> {
        self.pending.as_ref().filter(|pending| pending.is_sent && pending.n_left > 0)
    }

    /// Keeps a copy of the requests until they can be sent, or until no retry is needed.
    pub(super) fn keep_request(&mut self, bytes: &[u8]) {
        self.request.clear();
        self.request.extend_from_slice(bytes);
    }

    /// Whether the server may have closed the connection before it saw the last requests.
    pub(super) fn may_retry(&self) -> bool {
        self.is_used
            && (self.fixed.is_some() || !self.request.is_empty())
            && self.unanswered().is_some_and(|pending| {
                pending.may_repeat
                    && !pending.is_retry
                    && pending.first_byte_at.is_none()
                    && pending.n_left == pending.n_requests
            })
    }

    /// Keeps a part of an answer.
    pub(super) fn append_message(&mut self, bytes: &[u8], spare: &mut SpareBuffers) -> Result<(), RequestFault> {
        if self.is_message_cut {
            return Ok(());
        }
        if self.message.len() + bytes.len() > MESSAGE_MAX {
            if self.pending.as_ref().is_none_or(|pending| pending.detail != AnswerDetail::Beginning) {
                return Err(RequestFault { stage: RequestStage::Read, cause: FaultCause::TooLarge });
            }
            self.message.truncate(BEGINNING_MAX);
            self.message.shrink_to_fit();
            self.is_message_cut = true;
            return Ok(());
        }
        if self.message.capacity() == 0 {
            self.message = spare.take();
        }
        self.message.extend_from_slice(bytes);
        Ok(())
    }

    /// The kept part of an answer that is complete.
    pub(super) fn take_message(&mut self) -> Vec<u8> {
        self.is_message_cut = false;
        std::mem::take(&mut self.message)
    }
}

/// An answer without the interim ones before it.
pub(super) fn without_interim<'a>(message: &'a [u8], answer: &ResponseSummary) -> &'a [u8] {
    let begin = usize::try_from(answer.interim_bytes).unwrap_or(usize::MAX);
    message.get(begin..).unwrap_or_default()
}

/// Buffers for answers that arrive in several pieces. Few are in use at once, however many users there are.
#[derive(Debug, Default)]
pub(super) struct SpareBuffers(Vec<Vec<u8>>);

impl SpareBuffers {
    /// The most buffers kept for later.
    const N: usize = 64;
    /// Larger buffers are not kept: most answers are smaller.
    const BYTES: usize = 256 * 1024;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Returns a used buffer.
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
        // Each slot also has one entry among the resting users, and one each in the free slots and the connect queue.
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
