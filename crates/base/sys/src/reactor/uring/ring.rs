//! The two queues of an `io_uring`, and the tags that identify requests in them.

use std::{io, net::Shutdown, os::fd::RawFd};

use fathom_model::units::Nanos;
use io_uring::{
    IoUring, cqueue, opcode, squeue,
    types::{CancelBuilder, SubmitArgs, Timespec},
};

use crate::{Error, Result, clock, reactor::Batch, socket::SockAddr};

/// Requests submitted per call; when it is full, requests are submitted early. Small, because walking the ring takes cache.
const REQUESTS: u32 = 256;
/// Completions that fit before the kernel has to allocate more: at least this many …
const COMPLETIONS_MIN: u32 = 2048;
/// … and at most this many, regardless of the number of connections. The kernel's table of waiting requests grows with it, and with the
/// table the time to find a request to cancel: `io_ring_ctx_alloc` in `io_uring/io_uring.c`.
const COMPLETIONS_MAX: u32 = 1 << 13;

/// The way a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketEnd {
    /// Close it; its waiting requests have been canceled.
    Close,
    /// Shut it down, which ends its waiting requests: to cancel one, the kernel would have to find it among the requests of all sockets.
    Shutdown,
}

/// The identity of a request, encoded in its 64 bits of user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestTag {
    pub(super) kind: RequestKind,
    /// Distinguishes a socket from earlier ones of its token; 24 bits.
    pub(super) generation: u32,
    /// The token, or the number of a flight.
    pub(super) place: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    Receive,
    Accept,
    Connect,
    /// Unconfirmed bytes; only a failure is reported.
    Send,
    /// Bytes whose completion is reported.
    Flight,
    /// A cancel that checks whether a send is still in progress.
    Probe,
    Cancel,
}

/// Generations wrap around in the bits that a tag has for them.
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

/// The queues, and the data that must outlive requests that are not yet submitted.
pub(super) struct Ring {
    pub(super) io: IoUring,
    /// Completions taken from the queue but not yet processed.
    done: Vec<cqueue::Entry>,
    n_looked_at: usize,
    /// The kernel copies an address when the request is submitted.
    addresses: Vec<SockAddr>,
    /// Closed sockets: their descriptors must not be reused while a request for them waits in the queue.
    closing: Vec<(crate::socket::Socket, SocketEnd)>,
    /// The error that occurred when the queue was full.
    broken: Option<Error>,
}

impl Ring {
    pub(super) fn new(n_connections: u32) -> Result<Self> {
        let n_completions = n_connections.clamp(COMPLETIONS_MIN, COMPLETIONS_MAX);
        let io = IoUring::builder()
            .setup_single_issuer()
            // Completions are processed when this thread asks for them, not on every packet interrupt.
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

    /// Whether the kernel can wait for several completions with a time limit (Linux 6.12).
    pub(super) fn has_min_wait(&self) -> bool {
        self.io.params().is_feature_min_timeout()
    }

    /// Queues a request; if the queue is full, submits it first.
    ///
    /// # Safety
    /// The memory that the request points to must stay valid until the request has completed.
    pub(super) unsafe fn push(&mut self, request: &squeue::Entry) {
        // SAFETY: the caller guarantees this.
        while self.broken.is_none() && unsafe { self.io.submission().push(request) }.is_err() {
            if let Err(error) = self.hand_over() {
                self.broken = Some(error);
            }
        }
    }

    /// Queues a connect of a socket that the caller keeps.
    pub(super) fn push_connect(&mut self, fd: RawFd, address: &SockAddr, ticket: RequestTag) {
        // The list must not reallocate, because its addresses must not move. When it is full, so is the queue.
        while self.addresses.len() == self.addresses.capacity() {
            if let Err(error) = self.hand_over() {
                self.broken.get_or_insert(error);
                return;
            }
        }
        self.addresses.push(address.clone());
        let address = self.addresses.last().expect("it was just pushed");
        let request = opcode::Connect::new(io_uring::types::Fd(fd), address.as_ptr().cast(), address.len());
        // SAFETY: the address does not move, because the list does not reallocate, until the request is submitted; the kernel has copied it
        // by then.
        unsafe { self.push(&request.build().user_data(ticket.bits())) };
    }

    /// Queues the cancellation of a request, which completes once more with its progress.
    pub(super) fn push_cancel(&mut self, of: RequestTag, ticket: RequestTag) {
        let request = opcode::AsyncCancel::new(of.bits()).build().user_data(ticket.bits());
        // Only a probe needs the answer.
        let flags =
            if ticket.kind == RequestKind::Cancel { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        // SAFETY: a cancel has no pointers.
        unsafe { self.push(&request.flags(flags)) };
    }

    /// Queues the cancellation of all requests.
    pub(super) fn push_cancel_all(&mut self, ticket: RequestTag) {
        let request = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(ticket.bits());
        // SAFETY: a cancel has no pointers.
        unsafe { self.push(&request) };
    }

    /// Keeps a socket open until no queued request can refer to it, then ends it.
    pub(super) fn close(&mut self, socket: crate::socket::Socket, end: SocketEnd) {
        self.closing.push((socket, end));
    }

    /// Submits queued requests without waiting.
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
                    // Fails if the peer has already closed it.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }
        }
    }

    /// Submits queued requests, waits for completions, and takes them.
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

    /// Submits queued requests and takes available completions; even a wait of zero time would yield the processor.
    fn look(&mut self) -> Result<()> {
        /// `IORING_ENTER_GETEVENTS`: process completions, which is deferred until then.
        const GET_EVENTS: u32 = 1;
        let n_queued = u32::try_from(self.io.submission().len()).expect("the queue is short");
        // SAFETY: there is no argument, and the memory of queued requests stays valid, as the callers of `push` guarantee.
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
            // A wait shorter than the kernel's time unit is useless.
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

/// Converts the error number of a completion.
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
