//! The two queues of an `io_uring`, and how requests are known again in them.

use std::{io, net::Shutdown, os::fd::RawFd};

use fathom_model::units::Nanos;
use io_uring::{
    IoUring, cqueue, opcode, squeue,
    types::{CancelBuilder, SubmitArgs, Timespec},
};

use crate::{Error, Result, clock, reactor::Batch, socket::SockAddr};

/// Requests handed over with one call; more are handed over in between. Small, for the ring is walked through and takes cache.
const REQUESTS: u32 = 256;
/// Completions that fit before the kernel has to allocate for more: at least that many …
const COMPLETIONS_MIN: u32 = 2048;
/// … and at most, however many connections there are. The kernel's table of requests that wait grows with them too, and with it the
/// time to find one that is to be cancelled: `io_ring_ctx_alloc` in `io_uring/io_uring.c`.
const COMPLETIONS_MAX: u32 = 1 << 13;

/// How a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketEnd {
    /// What waits on it has been cancelled.
    Close,
    /// With whatever waits on it: to cancel that, the kernel would have to find it among the requests of all sockets.
    Shutdown,
}

/// What a completion belongs to, as the 64 bits that go with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestTag {
    pub(super) kind: RequestKind,
    /// Tells a socket from the earlier ones of its token; 24 bits.
    pub(super) generation: u32,
    /// The token, or the place of a flight.
    pub(super) place: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Receive,
    Accept,
    Connect,
    /// Fixed bytes, of which only a failure is told.
    Send,
    /// Bytes whose end is told.
    Flight,
    /// A cancel that asks whether a send is still under way.
    Probe,
    Cancel,
}

/// Generations count round in the bits that a ticket has for them.
pub(super) const GENERATIONS: u32 = 1 << 24;

impl RequestTag {
    pub(super) fn bits(self) -> u64 {
        u64::from(self.kind as u8) << 56 | u64::from(self.generation) << 32 | u64::from(self.place)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        const KINDS: [RequestKind; 7] = [
            RequestKind::Receive,
            RequestKind::Accept,
            RequestKind::Connect,
            RequestKind::Send,
            RequestKind::Flight,
            RequestKind::Probe,
            RequestKind::Cancel,
        ];
        let low = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).expect("it is masked");
        Self { kind: KINDS[low(bits >> 56) as usize], generation: low(bits >> 32) % GENERATIONS, place: low(bits) }
    }
}

/// The queues, and what must outlive the requests that are not handed over yet.
pub(super) struct Ring {
    pub(super) io: IoUring,
    /// Completions taken from the queue and not yet looked at.
    done: Vec<cqueue::Entry>,
    n_looked_at: usize,
    /// The kernel copies an address when the request is handed over.
    addresses: Vec<SockAddr>,
    /// Closed sockets: their numbers must not be used again while a request with them waits to be handed over.
    closing: Vec<(crate::socket::Socket, SocketEnd)>,
    /// What went wrong when the queue was full.
    broken: Option<Error>,
}

impl Ring {
    pub(super) fn new(n_connections: u32) -> Result<Self> {
        let n_completions = n_connections.clamp(COMPLETIONS_MIN, COMPLETIONS_MAX);
        let io = IoUring::builder()
            .setup_single_issuer()
            // Completions are worked out when this thread asks for them, not whenever a packet interrupts it.
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize(n_completions)
            .dontfork()
            .build(REQUESTS)
            .map_err(|error| Error::new("io_uring_setup", error))?;
        Ok(Self {
            io,
            done: Vec::with_capacity(n_completions as usize),
            n_looked_at: 0,
            addresses: Vec::with_capacity(REQUESTS as usize),
            closing: Vec::new(),
            broken: None,
        })
    }

    /// Whether the kernel can wait for several completions with a bound (Linux 6.12).
    pub(super) fn has_min_wait(&self) -> bool {
        self.io.params().is_feature_min_timeout()
    }

    /// Queues a request; when the queue is full, those in it are handed over first.
    ///
    /// # Safety
    /// What the request points to must stay valid until it has completed.
    pub(super) unsafe fn push(&mut self, request: &squeue::Entry) {
        // SAFETY: the caller promises what is needed.
        while self.broken.is_none() && unsafe { self.io.submission().push(request) }.is_err() {
            if let Err(error) = self.hand_over() {
                self.broken = Some(error);
            }
        }
    }

    /// Queues a connect of a socket that the caller keeps.
    pub(super) fn push_connect(&mut self, fd: RawFd, address: &SockAddr, ticket: RequestTag) {
        // The list must not grow, for its addresses must stay where they are. When it is full, so is the queue.
        while self.addresses.len() == self.addresses.capacity() {
            if let Err(error) = self.hand_over() {
                self.broken.get_or_insert(error);
                return;
            }
        }
        self.addresses.push(address.clone());
        let address = self.addresses.last().expect("it was just pushed");
        let request = opcode::Connect::new(io_uring::types::Fd(fd), address.as_ptr().cast(), address.len());
        // SAFETY: the address stays where it is, for the list does not grow, until the request is handed over; then the
        // kernel has copied it.
        unsafe { self.push(&request.build().user_data(ticket.bits())) };
    }

    /// Queues the end of a request, which completes once more with what it has done by then.
    pub(super) fn push_cancel(&mut self, of: RequestTag, ticket: RequestTag) {
        let request = opcode::AsyncCancel::new(of.bits()).build().user_data(ticket.bits());
        // Only a probe is about the answer.
        let flags =
            if ticket.kind == RequestKind::Cancel { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        // SAFETY: a cancel points to nothing.
        unsafe { self.push(&request.flags(flags)) };
    }

    /// Queues the end of all requests.
    pub(super) fn push_cancel_all(&mut self, ticket: RequestTag) {
        let request = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(ticket.bits());
        // SAFETY: a cancel points to nothing.
        unsafe { self.push(&request) };
    }

    /// Keeps a socket open until no queued request can mean it, and ends it then.
    pub(super) fn close(&mut self, socket: crate::socket::Socket, end: SocketEnd) {
        self.closing.push((socket, end));
    }

    /// Hands over what is queued without waiting.
    fn hand_over(&mut self) -> Result<()> {
        loop {
            match self.io.submit() {
                Ok(_) => break,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Completions must be taken first.
                    Some(libc::EBUSY | libc::EAGAIN) => self.enter(0, None, Nanos::ZERO)?,
                    _ => return Err(Error::new("io_uring_enter", error)),
                },
            }
        }
        self.forget_handed_over();
        Ok(())
    }

    fn forget_handed_over(&mut self) {
        if self.io.submission().is_empty() {
            self.addresses.clear();
            for (socket, end) in self.closing.drain(..) {
                if end == SocketEnd::Shutdown {
                    // Fails when the peer has ended it already.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
        }
    }

    /// Hands over what is queued, waits for completions, and takes them.
    pub(super) fn wait(&mut self, until: Nanos, batch: Option<Batch>) -> Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let span = until.since(clock::now());
        if span == Nanos::ZERO {
            return self.look();
        }
        self.enter(1, batch.filter(|batch| batch.n > 1 && self.has_min_wait()), span)
    }

    /// Hands over what is queued and takes the completions there are; a wait without time would still give the processor up.
    fn look(&mut self) -> Result<()> {
        /// `IORING_ENTER_GETEVENTS`: work out completions, which is put off until then.
        const GET_EVENTS: u32 = 1;
        let n_queued = u32::try_from(self.io.submission().len()).expect("the queue is short");
        // SAFETY: no argument is given, and what queued requests point to stays valid, as `push` was promised.
        match unsafe { self.io.submitter().enter::<libc::sigset_t>(n_queued, 0, GET_EVENTS, None) } {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => return Err(Error::new("io_uring_enter", error)),
        }
        self.forget_handed_over();
        self.take();
        Ok(())
    }

    fn enter(&mut self, n_wanted: usize, batch: Option<Batch>, span: Nanos) -> Result<()> {
        let subsec = u32::try_from(span.0 % 1_000_000_000).expect("it is less than a second");
        let timeout = Timespec::new().sec(span.0 / 1_000_000_000).nsec(subsec);
        let mut arguments = SubmitArgs::new().timespec(&timeout);
        let mut n_wanted = n_wanted.max(1);
        if let Some(Batch { n, within }) = batch {
            let micros = u32::try_from(within.0.min(span.0) / 1000).unwrap_or(u32::MAX);
            // Without a span of at least one of the kernel's units there is nothing to wait for.
            if micros > 0 {
                arguments = arguments.min_wait_usec(micros);
                n_wanted = n as usize;
            }
        }
        match self.io.submitter().submit_with_args(n_wanted, &arguments) {
            Ok(_) => {}
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(error) => return Err(Error::new("io_uring_enter", error)),
        }
        self.forget_handed_over();
        self.take();
        Ok(())
    }

    fn take(&mut self) {
        if self.n_looked_at == self.done.len() {
            self.done.clear();
            self.n_looked_at = 0;
        }
        self.done.extend(self.io.completion());
    }

    pub(super) fn has_completions(&self) -> bool {
        self.n_looked_at < self.done.len()
    }

    pub(super) fn next(&mut self) -> Option<cqueue::Entry> {
        let entry = self.done.get(self.n_looked_at)?.clone();
        self.n_looked_at += 1;
        Some(entry)
    }
}

/// The kernel's number of an error, as completions carry it.
pub(super) fn error(call: &'static str, result: i32) -> Error {
    Error::new(call, io::Error::from_raw_os_error(-result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_back_from_its_bits() {
        for kind in [
            RequestKind::Receive,
            RequestKind::Accept,
            RequestKind::Connect,
            RequestKind::Send,
            RequestKind::Flight,
            RequestKind::Probe,
            RequestKind::Cancel,
        ] {
            let ticket = RequestTag { kind, generation: GENERATIONS - 1, place: u32::MAX };
            assert_eq!(RequestTag::from_bits(ticket.bits()), ticket);
        }
    }
}
