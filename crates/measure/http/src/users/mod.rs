//! Connections that belong to users: the next request of a user depends on the previous answers.
//!
//! The engine moves bytes, follows answers and takes timestamps; [`Users`] decide what to do. Both run in one thread, and each
//! worker has its own users: workers share nothing. This module does not know the language in which users are scripted.
//!
//! [`VirtualUsers`] covers everything from the settings to the record. Within a worker, the user pool holds the slots with their
//! connections and makes no decisions; the user loop combines the users with the pool and runs them.

mod answers;
mod fixed_requests;
mod options;
mod user_arrivals;
mod user_connection;
mod user_loop;
mod user_pool;
mod virtual_users;

use fathom_engine::load::TICK;
use fathom_model::units::Nanos;

pub use self::{
    options::OPTIONS,
    user_arrivals::UserArrivals,
    virtual_users::{VirtualUsers, WorkerShare},
};
pub use crate::kinds::options::concat_options;

/// The slot of a user in its worker, a small dense number. A user has one connection at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserSlot(pub u32);

/// The next action of a user.
#[derive(Debug)]
pub enum UserAction<'a> {
    /// Sends a request; the user runs again when all answers have arrived.
    Send(UserRequest<'a>),
    /// Rests until a given time, then runs again.
    Sleep {
        /// On the monotonic clock.
        until: Nanos,
    },
    /// Rests until [`Users::next_woken`] names the slot.
    Wait,
    /// Closes its connection and runs again; its next request goes over a new connection.
    CloseConnection,
    /// Leaves: its connection is closed, and its slot is free for another user.
    Leave,
}

/// Bytes to send, with the data needed to follow the answers.
#[derive(Debug, Clone, Copy)]
pub struct UserRequest<'a> {
    /// One or more whole requests, concatenated.
    pub bytes: &'a [u8],
    /// The number of requests, at least 1.
    pub n_requests: u16,
    /// The index of the server's URL in the settings. Another server than before requires another connection.
    pub server: u16,
    /// How the method delimits an answer.
    pub framing: BodyFraming,
    /// How much of the answers is kept.
    pub detail: AnswerDetail,
    /// A request without its whole answer after this time is given up; this is noticed within 100 ms.
    pub timeout: Nanos,
    /// Whether it may be sent once more if the server closes a used connection without answering: it may have been applied.
    pub may_repeat: bool,
}

/// How a method affects the end of its answer (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyFraming {
    /// The head defines the end of the body.
    #[default]
    Body,
    /// `HEAD`: no answer has a body.
    NoBody,
}

/// How much of an answer a user reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerDetail {
    /// Its status and times: nothing is kept, and large bodies may be discarded unread.
    #[default]
    Status,
    /// The whole message, as received. One of more than 16 MiB is a failure.
    Message,
    /// The same, but of a message of more than 16 MiB only the beginning, in which the head is.
    Beginning,
}

/// A complete answer.
#[derive(Debug, Clone, Copy)]
pub struct UserAnswer<'a> {
    pub status: u16,
    /// Head and body as received, chunk framing included, without interim answers, as far as they were requested.
    pub message: &'a [u8],
    /// The length of the body on the wire.
    pub body_bytes: u64,
    /// When its request was handed to the kernel.
    pub sent_at: Nanos,
    /// When its first bytes were received.
    pub first_byte_at: Nanos,
    /// When its last byte was received.
    pub ended_at: Nanos,
    /// Whether it is the last answer to the requests sent together; if so, the user runs next.
    pub position: BatchPosition,
    /// The number of the user's connection that it arrived on; 0 is the first.
    pub connection_number: u32,
}

/// The position of an answer among those to requests sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchPosition {
    /// More answers follow.
    Within,
    /// The last answer.
    Last,
}

/// A failed request, or a failed connect for it; the user runs next.
#[derive(Debug, Clone, Copy)]
pub struct UserFailure<'a> {
    /// The cause as it appears in the errors of a record: `connect: connection refused`.
    pub cause: &'a str,
    pub stage: UserFailureStage,
    /// When the request was sent, or when the connect began if it was not sent.
    pub sent_at: Nanos,
    /// When the failure was noticed.
    pub ended_at: Nanos,
}

/// The stage of a failure, as far as users and the replaced tools distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserFailureStage {
    /// Lookup, connect, proxy or TLS.
    Connect,
    /// Sending the request.
    Send,
    /// Reading the answer: closed, reset, malformed, or larger than the limit.
    Read,
    /// No whole answer in time.
    Timeout,
}

/// Whether events count at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurePhase {
    /// The warm-up: nothing counts.
    WarmUp,
    /// Everything that ends now counts.
    Measured,
    /// The trial is over: users no longer run, and answers in flight are awaited briefly.
    Over,
}

/// The users of one worker.
pub trait Users {
    /// Their result.
    type Outcome: Send;

    /// A user arrives and takes a free slot; it runs next. `late` is the delay of its arrival.
    fn arrive(&mut self, slot: UserSlot, now: Nanos, late: Nanos);

    /// Returns the next action of the user in a slot.
    ///
    /// Called on arrival, after the last answer, at the end of a rest, when woken, after closing the connection, and after a
    /// failure. After the failure of a connection that had worked this is soon; with each further failed connect the pause grows,
    /// so that a failed server is not flooded with connects.
    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_>;

    /// An answer has arrived.
    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>);

    /// A request or a connect has failed. The connection is closed.
    fn failed(&mut self, slot: UserSlot, failed: &UserFailure<'_>);

    /// Returns a slot whose wait is over, each once. Called in each round of the loop, at least as often as [`Users::woken_within`] says.
    fn next_woken(&mut self, _now: Nanos) -> Option<UserSlot> {
        None
    }

    /// The longest time from one call of [`Users::next_woken`] to the next.
    fn woken_within(&self) -> Nanos {
        TICK
    }

    /// Whether all users of this worker have decided to stop before the time is over.
    fn is_over(&self) -> bool {
        false
    }

    /// The phase has changed.
    fn on_phase(&mut self, window: MeasurePhase, now: Nanos);

    /// The trial is over; users in slots that are still taken have not left.
    fn finish(self, now: Nanos) -> Self::Outcome;
}
