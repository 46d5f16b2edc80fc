//! The connection of a seat, with what is under way on it.

use fathom_model::units::Nanos;
use fathom_sys::reactor::Fixed;

use super::{Ask, Framing, Wants};
use crate::{
    h1::{Answer, ResponseReader},
    lines::{Cause, Fault, Line, Stage},
};

/// More of an answer is not kept: it is a download, and what wants to look at it is better off with its length.
const MESSAGE_MAX: usize = 16 << 20;
/// A request longer than this is not kept to be sent again: thousands of users would keep thousands of them.
pub(super) const KEPT_MAX: usize = 16 * 1024;

/// What the user in a seat is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nobody sits there.
    Vacant,
    /// It has its turn, now or when the worker comes to it.
    Turn,
    /// It waits for answers, or for the connection that its requests will go over.
    Asking,
    /// Its rest ends by the clock.
    Resting,
    /// It waits until it is woken.
    Waiting,
}

/// Requests that were sent together, as far as they have not been answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) n_left: u16,
    pub(super) n_asked: u16,
    pub(super) framing: Framing,
    pub(super) wants: Wants,
    /// Whether it stands in the kernel's hands, and not in ours.
    pub(super) is_sent: bool,
    /// Whether a connection that the server had closed was in its way before.
    pub(super) is_again: bool,
    pub(super) timeout: Nanos,
    /// When it was sent; when the connect for it began, if it is not.
    pub(super) sent_at: Nanos,
    /// When the answer under way began.
    pub(super) first_byte_at: Option<Nanos>,
}

impl Pending {
    pub(super) fn of(ask: &Ask<'_>) -> Self {
        Self {
            n_left: ask.n_requests,
            n_asked: ask.n_requests,
            framing: ask.framing,
            wants: ask.wants,
            is_sent: false,
            is_again: false,
            timeout: ask.timeout,
            sent_at: Nanos::ZERO,
            first_byte_at: None,
        }
    }
}

/// A connection with its user's requests.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) line: Line,
    pub(super) reader: ResponseReader,
    pub(super) doing: Doing,
    /// Nothing before the first request.
    pub(super) pending: Option<Pending>,
    /// The bytes of what is pending, until they are of no more use.
    pub(super) request: Vec<u8>,
    /// The same, if the reactor keeps them, with their length.
    pub(super) fixed: Option<(Fixed, usize)>,
    /// What has come of an answer that somebody wants to see, if it did not come in one piece.
    pub(super) message: Vec<u8>,
    /// How many connections this user has had.
    pub(super) n_opened: u32,
    /// Failures since the last answer.
    pub(super) n_failures: u32,
    /// Whether there was an answer on this connection.
    pub(super) is_used: bool,
}

impl Connection {
    pub(super) fn new() -> Self {
        Self {
            line: Line::new(0),
            reader: ResponseReader::default(),
            doing: Doing::Vacant,
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
    pub(super) fn occupy(&mut self) {
        (self.doing, self.pending, self.n_opened, self.n_failures) = (Doing::Turn, None, 0, 0);
    }

    /// Ready for the first request on a new socket.
    pub(super) fn begin(&mut self) {
        self.reader.reset();
        self.message.clear();
        self.is_used = false;
        self.n_opened += 1;
    }

    /// What the kernel has of a request that is not answered yet.
    pub(super) fn sent(&self) -> Option<&Pending> {
        self.pending.as_ref().filter(|pending| pending.is_sent && pending.n_left > 0)
    }

    /// Keeps a copy of what is asked until it can be sent, or need not be sent again.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.request.clear();
        self.request.extend_from_slice(bytes);
    }

    /// Whether the server may have closed the connection without having seen what was sent last.
    pub(super) fn may_repeat(&self) -> bool {
        self.is_used
            && (self.fixed.is_some() || !self.request.is_empty())
            && self.sent().is_some_and(|pending| {
                !pending.is_again && pending.first_byte_at.is_none() && pending.n_left == pending.n_asked
            })
    }

    /// Keeps a part of an answer.
    pub(super) fn gather(&mut self, bytes: &[u8], spare: &mut Spare) -> Result<(), Fault> {
        if self.message.len() + bytes.len() > MESSAGE_MAX {
            return Err(Fault { stage: Stage::Read, cause: Cause::TooLarge });
        }
        if self.message.capacity() == 0 {
            self.message = spare.take();
        }
        self.message.extend_from_slice(bytes);
        Ok(())
    }
}

/// An answer without the interim ones before it.
pub(super) fn without_interim<'a>(message: &'a [u8], answer: &Answer) -> &'a [u8] {
    let begin = usize::try_from(answer.interim_bytes).unwrap_or(usize::MAX);
    message.get(begin..).unwrap_or_default()
}

/// Buffers for answers that come in several pieces: few are under way at once, however many users there are.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// So many are kept for later.
    const N: usize = 64;
    /// Larger ones are not: the answers of most servers are smaller.
    const BYTES: usize = 256 * 1024;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes a buffer that is done with.
    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
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
        let with_queues = size_of::<Connection>() + size_of::<(Nanos, u32)>() + 2 * size_of::<u32>();
        assert!(with_queues <= 512, "{with_queues}");
    }

    #[test]
    fn what_is_kept_of_an_answer_has_a_bound() {
        let (mut connection, mut spare) = (Connection::new(), Spare::default());
        let piece = vec![0; 1 << 20];
        for _ in 0..16 {
            connection.gather(&piece, &mut spare).unwrap();
        }
        assert_eq!(connection.gather(b"x", &mut spare).map_err(|fault| fault.cause), Err(Cause::TooLarge));
    }

    #[test]
    fn buffers_of_answers_are_used_again() {
        let (mut connection, mut spare) = (Connection::new(), Spare::default());
        connection.gather(&[0; 1000], &mut spare).unwrap();
        let buffer = std::mem::take(&mut connection.message);
        let place = buffer.as_ptr();
        spare.give(buffer);
        spare.give(Vec::new());
        connection.gather(b"x", &mut spare).unwrap();
        assert_eq!((connection.message.as_ptr(), connection.message.as_slice()), (place, b"x".as_slice()));
    }
}
