//! Connections that belong to users: what each asks next depends on what was answered.
//!
//! The engine moves bytes, follows answers and takes the times; [`Users`] decide. Both run in one thread, and each worker has
//! users of its own: nothing is shared. Knows no language in which users are written.
//!
//! A [`VirtualUsers`] is all of it, from the settings to the record. Within a worker, the hall has the seats with their connections and
//! decides nothing; the gathering is the users in it, and the loop that gives them their turns.

mod answers;
mod fixed_requests;
mod options;
mod user_arrivals;
mod user_connection;
mod user_loop;
mod user_pool;
mod virtual_users;

use fathom_model::units::Nanos;

pub use self::{
    options::OPTIONS,
    user_arrivals::UserArrivals,
    virtual_users::{VirtualUsers, WorkerShare},
};
pub use crate::kinds::options::concat_options;

/// The place of a user in its worker: small dense numbers. A user has one connection at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserSlot(pub u32);

/// What a user does next.
#[derive(Debug)]
pub enum UserAction<'a> {
    /// Sends, and is called when all answers to it have come.
    Send(UserRequest<'a>),
    /// Does nothing until then, and is asked again.
    Sleep {
        /// On the monotonic clock.
        until: Nanos,
    },
    /// Does nothing until [`Users::next_woken`] names the seat.
    Wait,
    /// Closes its connection and is asked again: what it asks next goes over a new one.
    CloseConnection,
    /// Has gone: its connection is closed, and its seat is free for another.
    Leave,
}

/// Bytes on their way out, with what must be known to follow the answers.
#[derive(Debug, Clone, Copy)]
pub struct UserRequest<'a> {
    /// One or more whole requests, one behind the other.
    pub bytes: &'a [u8],
    /// How many requests they are, at least 1.
    pub n_requests: u16,
    /// Which of the servers it goes to: a place among the URLs of the settings. Another than before needs another connection.
    pub server: u16,
    /// The method, as far as it says where an answer ends.
    pub framing: BodyFraming,
    /// How much of the answers is looked at.
    pub detail: AnswerDetail,
    /// After so long without the whole answer it is given up; that is noticed within a tenth of a second.
    pub timeout: Nanos,
}

/// What a method says of the end of its answer (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyFraming {
    /// Its head says where a body ends.
    #[default]
    Body,
    /// `HEAD`: no answer has a body.
    NoBody,
}

/// How much of an answer a user looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AnswerDetail {
    /// Its status and its times: nothing is kept, and large bodies may be thrown away unseen.
    #[default]
    Status,
    /// All of it, as it came.
    Message,
}

/// An answer that has come to its end.
#[derive(Debug, Clone, Copy)]
pub struct UserAnswer<'a> {
    /// The status code.
    pub status: u16,
    /// Head and body as they came, chunk sizes and all, without interim answers; empty unless it was wanted.
    pub message: &'a [u8],
    /// The length of the body on the wire.
    pub body_bytes: u64,
    /// When its request was handed to the kernel.
    pub sent_at: Nanos,
    /// When its first bytes were received.
    pub first_byte_at: Nanos,
    /// When its last byte was received.
    pub ended_at: Nanos,
    /// Whether it is the last one of what was sent together: the user has its turn then.
    pub position: BatchPosition,
    /// Which of its connections it came on: 0 for the first.
    pub connection_number: u32,
}

/// Where an answer stands among those to what was sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchPosition {
    /// More answers come.
    Within,
    /// It is the last.
    Last,
}

/// A request, or a connect for it, that has failed; the user has its turn then.
#[derive(Debug, Clone, Copy)]
pub struct UserFailure<'a> {
    /// What became of it, as it stands in the errors of a record: `connect: connection refused`.
    pub cause: &'a str,
    /// At what it failed.
    pub stage: UserFailureStage,
    /// When it was sent; when the connect began, if it was not sent.
    pub sent_at: Nanos,
    /// When that was known.
    pub ended_at: Nanos,
}

/// Where a request failed, as far as users and the tools that we replace tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserFailureStage {
    /// Name, connect, proxy, TLS.
    Connect,
    /// While it was sent.
    Send,
    /// While the answer was read: closed, reset, malformed, larger than what may be kept.
    Read,
    /// No whole answer in time.
    Timeout,
}

/// What counts at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurePhase {
    /// The warm-up: nothing counts.
    WarmUp,
    /// What ends now counts.
    Measured,
    /// The trial is over: users get no more turns, answers under way are waited for shortly.
    Over,
}

/// The users of one worker.
pub trait Users {
    /// What they bring home.
    type Outcome: Send;

    /// A user comes and takes a free seat; its turn follows. `late` is how much later than intended that was.
    fn arrive(&mut self, slot: UserSlot, now: Nanos, late: Nanos);

    /// What the user in a seat does next.
    ///
    /// Called on arrival, after the last answer, at the end of a rest, when woken, after hanging up, and after a failure: soon
    /// after one of a connection that had worked, later the more often in a row connects fail, so that a server that is down is
    /// not stormed.
    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_>;

    /// An answer has come.
    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>);

    /// A request or a connect has failed. The connection is closed.
    fn failed(&mut self, slot: UserSlot, failed: &UserFailure<'_>);

    /// A seat whose wait is over, each once; asked once in each round of the loop, at least every 10 ms.
    fn next_woken(&mut self, _now: Nanos) -> Option<UserSlot> {
        None
    }

    /// Whether all of this worker's users have decided to stop, whatever the time.
    fn is_over(&self) -> bool {
        false
    }

    /// What counts from now on.
    fn on_phase(&mut self, window: MeasurePhase, now: Nanos);

    /// The trial is over; seats that are still taken have not left.
    fn finish(self, now: Nanos) -> Self::Outcome;
}
