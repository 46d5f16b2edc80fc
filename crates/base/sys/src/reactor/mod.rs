//! Many connections served by one thread: the seam between an engine and the kernel's two ways of doing that.
//!
//! A [`Reactor`] owns the sockets of one thread. It is told what to do with a [`Token`] and answers with [`Completion`]s.
//! It knows nothing of the bytes that flow, of time-outs and of when to connect again. Two ways fill the seam: [`Epoll`],
//! which every kernel has, and [`Uring`], which is cheaper. The engine is generic over them, so no call is dispatched at run time.

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
use crate::{Error, Result, policy::Destination, socket::Socket};

/// The place of a socket: small dense numbers, chosen by the user of the reactor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u32);

impl Token {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes that a reactor keeps for its whole life, such as a request that is sent again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedBuffer(u32);

impl FixedBuffer {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes that have arrived; they lie in a buffer of the reactor until [`Reactor::release`].
#[derive(Debug)]
#[must_use = "a piece that is not released is lost to the reactor"]
pub struct ReceivedBytes {
    buffer: u32,
    start: u32,
    length: u32,
}

/// What has become of something that was asked for.
#[derive(Debug)]
pub struct Completion {
    /// The socket that it happened on.
    pub token: Token,
    /// When it was known: after the receive itself (epoll), or when the wait returned (`io_uring`).
    pub at: Nanos,
    /// What happened.
    pub event: Event,
}

/// What happens on a socket.
#[derive(Debug)]
pub enum Event {
    /// The connect has succeeded; only now may bytes be sent.
    Connected,
    /// Bytes have arrived; the piece must be released before the next call of [`Reactor::next`].
    Received(ReceivedBytes),
    /// So many more of the bytes that [`Reactor::discard`] was asked for are gone; the counts add up to what was asked.
    Discarded(u64),
    /// One [`Reactor::send`] is with the kernel as a whole.
    Sent,
    /// The peer will send no more; what it has sent came before. Sending may still work.
    Ended,
    /// A connect, send, receive or accept failed, as the error says; the token is dead, but must still be closed.
    Failed(Error),
    /// A listener has a new connection, non-blocking; [`Reactor::adopt`] it or drop it.
    Accepted(Socket),
}

/// How long a wait may last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimit {
    /// The monotonic time at which the wait ends, whether something has happened or not.
    pub until: Nanos,
    /// Whether to wait for several completions, to pay for the wait once; `None` returns with the first.
    pub batch: Option<Batch>,
}

/// How many completions are worth waiting for, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// So many completions end the wait (with epoll: if they are there when the first is).
    pub n: u32,
    /// After this span from the beginning of the wait one completion is enough.
    pub within: Nanos,
}

/// One thread's sockets and the kernel's way of waiting for all of them at once.
///
/// A call that asks for something never fails by itself: what goes wrong comes as [`Event::Failed`] of its token. After
/// `Failed` no completion of that token comes, and what is asked of it is ignored until it is closed. Sockets must be
/// non-blocking. A reactor stays on the thread that made it.
///
/// ```
/// use fathom_sys::{clock, policy::{AllowedPeers, Policy}, reactor::{Epoll, Event, Reactor, Token, WaitLimit}, socket};
/// use fathom_model::units::Nanos;
///
/// let listener = socket::listen(([127, 0, 0, 1], 0).into(), 8, &AllowedPeers::anybody())?;
/// let address = socket::local_address(&listener)?;
/// let mut reactor: Epoll = Reactor::new(2)?;
/// reactor.listen(Token(0), listener);
/// let to = Policy::anything().permit(address).expect("anything may be sent to");
/// reactor.connect(Token(1), socket::stream_nonblocking(address)?, &to);
/// let mut connected = false;
/// while !connected {
///     reactor.wait(WaitLimit { until: clock::now() + Nanos::from_secs(1), batch: None })?;
///     while let Some(completion) = reactor.next() {
///         connected |= matches!(completion.event, Event::Connected);
///     }
/// }
/// # Ok::<(), fathom_sys::Error>(())
/// ```
pub trait Reactor: Sized {
    /// How a result names it: `epoll` or `io_uring`.
    const NAME: &'static str;

    /// Makes room for about `n_connections` sockets; more are possible.
    ///
    /// # Errors
    /// When the kernel lacks or forbids what is needed, or descriptors or memory have run out.
    fn new(n_connections: u32) -> Result<Self>;

    /// Whether [`WaitLimit::batch`] is obeyed (`io_uring`: Linux 6.12); otherwise a wait ends with the first completion.
    fn batches(&self) -> bool;

    /// Keeps bytes that will be sent often; there is no way to give them back.
    fn fix(&mut self, bytes: Vec<u8>) -> FixedBuffer;

    /// Takes a socket (TCP or `AF_UNIX` stream) and connects it: [`Event::Connected`] or [`Event::Failed`] follows.
    ///
    /// # Panics
    /// When the token is in use; so do [`Reactor::adopt`] and [`Reactor::listen`].
    fn connect(&mut self, token: Token, socket: Socket, to: &Destination);

    /// Takes an established socket and begins to receive.
    fn adopt(&mut self, token: Token, socket: Socket);

    /// Takes a listening socket: an [`Event::Accepted`] follows for each connection.
    fn listen(&mut self, token: Token, socket: Socket);

    /// Sends fixed bytes, in the order of the calls; nothing is told of success.
    ///
    /// # Panics
    /// When the token is not in use; so do the other sends and [`Reactor::discard`].
    fn send_fixed(&mut self, token: Token, bytes: FixedBuffer);

    /// Sends bytes, in the order of the calls; each call is answered by one [`Event::Sent`].
    ///
    /// What cannot be handed over at once is copied, so the caller's buffer is free again.
    fn send(&mut self, token: Token, bytes: &[u8]);

    /// Sends bytes as [`Reactor::send`] does, but nothing is told of success.
    ///
    /// With `io_uring` that saves a completion for each, if they are few and the peer has answered what was sent before.
    fn send_quietly(&mut self, token: Token, bytes: &[u8]);

    /// Throws the next `count` bytes away as [`Event::Discarded`]; then receiving goes on as before.
    ///
    /// The bytes after those of the last [`Event::Received`] are meant. On TCP they are not copied out of the kernel
    /// (`MSG_TRUNC`). A second call adds to what the first has left.
    fn discard(&mut self, token: Token, count: u64);

    /// Closes the socket; no completion of it comes any more, and the token may be used again at once.
    ///
    /// The peer learns of it with the next [`Reactor::wait`] at the latest.
    /// A token that is not in use is left as it is. What has not been sent is lost.
    fn close(&mut self, token: Token);

    /// Ends all connections at once with a reset, so that none of them stays behind in `TIME_WAIT` and keeps its port.
    ///
    /// For connections whose end nobody measures. What has not been sent is lost; sockets that are no TCP connection are closed.
    fn abandon(self);

    /// The socket of a token, for its options and counters.
    fn socket(&self, token: Token) -> Option<&Socket>;

    /// When the last of the sends that have left was on the wire; nothing where the reactor does not stamp, or none has left since.
    fn departed(&mut self, token: Token) -> Option<Nanos> {
        let _ = token;
        None
    }

    /// Hands over what was asked, then waits for completions; returns at once when some are left from before.
    ///
    /// A signal ends it early.
    ///
    /// # Errors
    /// When the reactor itself is broken; it cannot be used any further.
    fn wait(&mut self, patience: WaitLimit) -> Result<()>;

    /// The next completion; `None` when it is time to wait again.
    ///
    /// # Panics
    /// When the piece that came last is not released.
    fn next(&mut self) -> Option<Completion>;

    /// The bytes of a piece.
    fn bytes(&self, piece: &ReceivedBytes) -> &[u8];

    /// Gives a piece back.
    fn release(&mut self, piece: ReceivedBytes);
}
