//! A stream of datagrams of one length, which ends with empty ones.

use fathom_model::units::{BitsPerSec, Nanos};
use fathom_sys::{
    Result, clock,
    socket::{
        self, Socket, Wait,
        datagram::{BatchShape, ReceiveBatch, SendBatch, SendResult},
    },
};
use fathom_transport::{connection_setup::BLOCKING_TIMEOUT, payload, stream::ByteSchedule};

use super::{Counter, TransferContext};
use crate::refusals::Refusals;

/// The number of empty datagrams that end a stream (`disconnect_data_socket` of netperf).
const END_MARKS: usize = 3;
/// The most datagrams of one call.
const BATCH_MAX: usize = 64;
/// The most bytes of one call that sends: more would only fill the send buffer.
const BATCH_BYTES_MAX: usize = 64 << 10;
/// How long a sender waits for a full queue of the device, which drains a batch in less.
const FULL_QUEUE_PAUSE: Nanos = Nanos::from_micros(50);

/// Sends datagrams over a connected socket until it is over or nobody listens any more, at most at the rate.
///
/// # Errors
/// The call that failed, other than a refused datagram.
pub(crate) fn send_datagrams(
    socket: &Socket,
    length: usize,
    rate: Option<BitsPerSec>,
    context: &impl TransferContext,
) -> Result<()> {
    let count = (BATCH_BYTES_MAX / length.max(1)).clamp(1, BATCH_MAX);
    let mut batch = SendBatch::new(BatchShape { count, size: length });
    for idx in 0..count {
        payload::fill(batch.payload_mut(idx), clock::now().0);
    }
    let mut schedule = rate.and_then(|rate| ByteSchedule::new(rate, clock::now()));
    let size = u64::try_from(length).unwrap_or(u64::MAX);
    let (mut next, mut n_sent, mut refusals) = (0, 0, Refusals::default());
    while !context.is_over() {
        if let Some(schedule) = &mut schedule {
            let now = clock::now();
            let due = schedule.next_due(now);
            if due > now {
                clock::sleep_until(due.min(now + BLOCKING_TIMEOUT));
                continue;
            }
        }
        // A paced sender sends one at a time, so that its bursts are no longer than one datagram.
        let end = if schedule.is_some() { next + 1 } else { count };
        match batch.send(socket, next..end, Wait::Block) {
            Ok(SendResult::Datagrams(n)) => {
                let sent = u64::try_from(n).unwrap_or(0);
                n_sent += sent;
                context.add(Counter::BytesSent, sent * size);
                context.add(Counter::SendCalls, sent);
                next = (next + n) % count;
                if let Some(schedule) = &mut schedule {
                    schedule.advance(sent * size);
                }
            }
            Ok(SendResult::WouldBlock) => {}
            Ok(SendResult::NoBuffers) => {
                context.add(Counter::FailedSends, 1);
                clock::sleep_until(clock::now() + FULL_QUEUE_PAUSE);
            }
            Err(error) if is_refused(&error) => {
                context.add(Counter::FailedSends, 1);
                if refusals.is_final(n_sent) {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives datagrams until an empty one ends the stream or it is over.
///
/// # Errors
/// The call that failed, other than the refusal of an earlier datagram.
pub(crate) fn receive_datagrams(socket: &Socket, length: usize, context: &impl TransferContext) -> Result<()> {
    // Room that no datagram reaches is never touched, so it takes no memory.
    let size = length.clamp(1, usize::from(u16::MAX));
    let mut batch = ReceiveBatch::new(BatchShape { count: BATCH_MAX, size });
    while !context.is_over() {
        let n = match batch.receive(socket, Wait::Block) {
            Ok(received) => received.unwrap_or(0),
            Err(error) if is_refused(&error) => continue,
            Err(error) => return Err(error),
        };
        let lengths = (0..n).map(|idx| batch.payload(idx).len());
        let (mut bytes, mut n_full) = (0, 0);
        for length in lengths.take_while(|length| *length > 0) {
            bytes += length;
            n_full += 1;
        }
        context.add(Counter::BytesReceived, u64::try_from(bytes).unwrap_or(0));
        context.add(Counter::RecvCalls, u64::try_from(n_full).unwrap_or(0));
        if n_full < n {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends the empty datagrams that end a stream. A receiver that misses all of them ends by its own time.
pub(crate) fn end_datagrams(socket: &Socket) {
    for _ in 0..END_MARKS {
        // A receiver that is already gone needs no mark.
        let _ = socket::send(socket, &[], Wait::Block);
    }
}

/// Whether nobody listened at the destination of an earlier datagram.
pub(super) fn is_refused(error: &fathom_sys::Error) -> bool {
    error.source.kind() == std::io::ErrorKind::ConnectionRefused
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, net::UdpSocket};

    use super::*;

    /// Ends never, and counts what was sent.
    #[derive(Default)]
    struct Endless(Cell<u64>);

    impl TransferContext for Endless {
        fn add(&self, counter: Counter, amount: u64) {
            if counter == Counter::SendCalls {
                self.0.set(self.0.get() + amount);
            }
        }
        fn is_over(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_sender_ends_when_nobody_listens() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(closed).unwrap();
        let (socket, context) = (Socket::from(socket), Endless::default());
        send_datagrams(&socket, 100, BitsPerSec::new(800_000.0), &context).unwrap();
        assert!((20..1000).contains(&context.0.get()), "{}", context.0.get());
    }
}
