//! Serves many connections on one thread: the interface between a test engine and the kernel's two mechanisms.
//!
//! A [`Reactor`] owns the sockets of one thread. Callers request operations on a [`Token`] and get [`Completion`]s. It knows nothing about
//! the transferred bytes, timeouts and reconnects. There are two implementations: [`Epoll`], which works on every kernel, and [`Uring`],
//! which is cheaper. The engine is generic over them, so there is no dynamic dispatch.

mod batch;
mod epoll;
pub mod epoll_wait;
#[cfg(test)]
mod suite;
pub mod uring;

use fathom_model::units::Nanos;

pub use self::{
    batch::Adaptive,
    epoll::{Epoll, StampedEpoll},
    uring::Uring,
};
use crate::{
    Error, Result,
    policy::Destination,
    socket::{Listener, Socket},
};

/// The slot of a socket: small dense numbers chosen by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

impl Token {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes that a reactor keeps for its whole life, such as a request that is sent repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedBuffer(u32);

impl FixedBuffer {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Received bytes; they stay in a buffer of the reactor until [`Reactor::release`].
#[derive(Debug)]
#[must_use = "a piece that is not released is lost to the reactor"]
pub struct ReceivedBytes {
    buffer: u32,
    start: u32,
    length: u32,
}

/// The result of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The socket.
    pub token: Token,
    /// When the result was known: after the receive itself (epoll), or when the wait returned (`io_uring`).
    pub at: Nanos,
    /// The event.
    pub event: Event,
}

/// An event on a socket.
#[derive(Debug)]
pub enum Event {
    /// The connect has succeeded; bytes may be sent only from now on.
    Connected,
    /// Bytes have arrived; the piece must be released before the next call of [`Reactor::next`].
    Received(ReceivedBytes),
    /// This many more bytes of a [`Reactor::discard`] are gone; the counts add up to the requested number.
    Discarded(u64),
    /// The kernel has accepted all bytes of one [`Reactor::send`].
    Sent,
    /// The peer has finished sending; all its data came before this event. Sending may still work.
    Ended,
    /// A connect, send, receive or accept failed with this error; the token is dead, but must still be closed.
    Failed(Error),
    /// A listener has a new connection, non-blocking; [`Reactor::adopt`] it or drop it.
    Accepted(Socket),
}

/// The limits of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimit {
    /// The monotonic time at which the wait ends in any case.
    pub until: Nanos,
    /// The batch to wait for, which shares the cost of the wait; `None` returns with the first completion.
    pub batch: Option<Batch>,
}

/// The number of completions to wait for, and the time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// The number of completions that ends the wait (with epoll: if they are present when the first one is).
    pub n: u32,
    /// After this time from the beginning of the wait, one completion is enough.
    pub within: Nanos,
}

/// One thread's sockets and the kernel mechanism for waiting on all of them at once.
///
/// A requesting call never fails directly: errors arrive as [`Event::Failed`] of its token. After `Failed` there are no more completions
/// for that token, and requests for it are ignored until it is closed. Sockets must be non-blocking. A reactor stays on the thread that
/// created it.
pub trait Reactor: Sized {
    /// The name in results: `epoll` or `io_uring`.
    const NAME: &'static str;

    /// Creates a reactor with room for about `n_connections` sockets; more are possible.
    ///
    /// # Errors
    /// If the kernel lacks or forbids a required feature, or if descriptors or memory have run out.
    fn new(n_connections: u32) -> Result<Self>;

    /// Whether [`WaitLimit::batch`] is supported (`io_uring`: Linux 6.12); otherwise a wait ends with the first completion.
    fn batches(&self) -> bool;

    /// Stores bytes that are sent often; they cannot be freed.
    fn fix(&mut self, bytes: Vec<u8>) -> FixedBuffer;

    /// Takes a socket (TCP or `AF_UNIX` stream) and connects it: [`Event::Connected`] or [`Event::Failed`] follows.
    ///
    /// # Panics
    /// If the token is in use; [`Reactor::adopt`] and [`Reactor::listen`] panic too.
    fn connect(&mut self, token: Token, socket: Socket, to: &Destination);

    /// Takes an established socket and starts to receive.
    fn adopt(&mut self, token: Token, socket: Socket);

    /// Takes a listening socket: an [`Event::Accepted`] follows for each connection of an allowed peer.
    fn listen(&mut self, token: Token, listener: Listener);

    /// Sends fixed bytes, in the order of the calls; success is not reported.
    ///
    /// # Panics
    /// If the token is not in use; the other sends and [`Reactor::discard`] panic too.
    fn send_fixed(&mut self, token: Token, bytes: FixedBuffer);

    /// Sends bytes, in the order of the calls; each call results in one [`Event::Sent`].
    ///
    /// Bytes that the kernel does not accept at once are copied, so the caller may reuse its buffer.
    fn send(&mut self, token: Token, bytes: &[u8]);

    /// Sends bytes like [`Reactor::send`], but success is not reported.
    ///
    /// With `io_uring` that saves a completion per send, if there are few bytes and the peer has answered everything sent before.
    fn send_quietly(&mut self, token: Token, bytes: &[u8]);

    /// Discards the next `count` bytes as [`Event::Discarded`]; then receiving continues as before.
    ///
    /// The count starts after the bytes of the last [`Event::Received`]. On TCP, discarded bytes are not copied out of the kernel
    /// (`MSG_TRUNC`). A second call adds to the rest of the first.
    fn discard(&mut self, token: Token, count: u64);

    /// Closes the socket; it has no more completions, and the token may be reused at once.
    ///
    /// The peer is notified by the next [`Reactor::wait`] at the latest. A token that is not in use is ignored. Unsent bytes are discarded.
    fn close(&mut self, token: Token);

    /// Resets all connections at once, so that none of them stays in `TIME_WAIT` and keeps its port.
    ///
    /// For connections whose end is not measured. Unsent bytes are discarded; sockets other than TCP connections are closed.
    fn abandon(self);

    /// The socket of a token, for its options and counters.
    fn socket(&self, token: Token) -> Option<&Socket>;

    /// The time at which the last departed send was on the wire; `None` if the reactor has no timestamps or nothing has departed since.
    fn departed(&mut self, token: Token) -> Option<Nanos> {
        let _ = token;
        None
    }

    /// Submits the requested operations, then waits for completions; returns at once if some are left from before.
    ///
    /// A signal ends the wait early.
    ///
    /// # Errors
    /// If the reactor itself has failed; it cannot be used any more.
    fn wait(&mut self, patience: WaitLimit) -> Result<()>;

    /// Returns the next completion; `None` if it is time to wait again.
    ///
    /// # Panics
    /// If the previous piece has not been released.
    fn next(&mut self) -> Option<Completion>;

    /// The bytes of a piece.
    fn bytes(&self, piece: &ReceivedBytes) -> &[u8];

    /// Releases a piece.
    fn release(&mut self, piece: ReceivedBytes);
}
