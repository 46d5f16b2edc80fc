//! One flow of numbered datagrams on its way in, step by step.

use std::net::SocketAddr;

use fathom_model::{Histogram, units::Nanos};
use fathom_sys::socket::{
    self, Socket, Wait,
    datagram::{self, BatchShape, ReceiveBatch},
};

use super::{
    DatagramHeader, DelayClocks, HeaderCodec, OffloadMode, SequenceCounts, SequenceTracker, StreamPhase,
    jitter::Jitter,
    sequence::{ArrivalKind, SequenceSummary},
};

/// Room for the longest super-buffer.
const SUPER_BUFFER: usize = 65_535;
/// Super-buffers per call: 512 KiB, which stay in the second-level cache.
const SUPER_BUFFERS: usize = 8;
/// As many as senders of Linux before 6.9 put into one, and 6.9 and later twice as many.
const SEGMENTS_MAX: u64 = 128;

/// What came in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveStep {
    /// What the datagrams were.
    pub counts: SequenceCounts,
    /// Payload bytes of those that count as received.
    pub bytes: u64,
    /// Datagrams of somebody else.
    pub n_foreign: u64,
    /// Whether a mark of the end was among them.
    pub is_end: bool,
}

/// What is known of a flow when nothing more comes.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiverSummary {
    /// What became of the numbers.
    pub sequence: SequenceSummary,
    /// The jitter at the end, where times were told and neighbours arrived.
    pub jitter: Option<Nanos>,
    /// How much longer or shorter neighbours were under way, of the measured part.
    pub ipdv: Histogram,
    /// One-way delays of the measured part, where both ends' clocks are known.
    pub delay: Histogram,
    /// Datagrams that the socket dropped for want of room.
    pub dropped: u64,
    /// How many messages the kernel delivered: fewer than datagrams where it joined some.
    pub n_messages: u64,
}

/// A flow that is being received.
pub struct Receiver<'s, C> {
    socket: &'s Socket,
    codec: C,
    batch: ReceiveBatch,
    sequence: SequenceTracker,
    jitter: Jitter,
    clocks: Option<DelayClocks>,
    ipdv: Histogram,
    delay: Histogram,
    n_messages: u64,
    dropped: Option<DropCounter>,
}

/// What a socket dropped that receives super-buffers, of which the kernel counts each as one (`__udp_enqueue_schedule_skb`).
///
/// The count comes with the next one that was queued, and the numbers that are missing in front of that are what was in them.
#[derive(Debug, Clone, Copy, Default)]
struct DropCounter {
    /// The kernel's count with the message before.
    messages: u32,
    datagrams: u64,
}

impl DropCounter {
    /// Takes the kernel's count with a message, and how many numbers are missing in front of it.
    fn update(&mut self, messages: u32, n_missing: u64) {
        let n_dropped = u64::from(messages.wrapping_sub(self.messages));
        self.messages = messages;
        self.datagrams += n_missing.min(n_dropped.saturating_mul(SEGMENTS_MAX));
    }

    /// All, with the kernel's count at the end: behind the last message were only marks, each of them alone.
    fn total(self, messages: u32) -> u64 {
        self.datagrams + u64::from(messages.wrapping_sub(self.messages))
    }
}

/// Room for what one call receives: that many datagrams of a size, or super-buffers where the kernel may join datagrams.
///
/// # Errors
/// The kernel's refusal, when super-buffers were asked for without an alternative.
pub fn receive_buffers(socket: &Socket, shape: BatchShape, joined: OffloadMode) -> fathom_sys::Result<ReceiveBatch> {
    if joined == OffloadMode::Never {
        return Ok(ReceiveBatch::new(shape));
    }
    match datagram::set_receive_offload(socket).and_then(|()| socket::set_report_drops(socket)) {
        Ok(()) => Ok(ReceiveBatch::new(BatchShape { count: shape.count.min(SUPER_BUFFERS), size: SUPER_BUFFER })),
        Err(error) if joined == OffloadMode::Required => Err(error),
        Err(_) => Ok(ReceiveBatch::new(shape)),
    }
}

impl<'s, C: HeaderCodec> Receiver<'s, C> {
    /// A flow of which nothing has come yet; its batch is from [`receive_buffers`].
    ///
    /// With both ends' clocks, delays follow from the times of sending and receiving.
    #[must_use]
    pub fn new((socket, codec): (&'s Socket, C), batch: ReceiveBatch, clocks: Option<DelayClocks>) -> Self {
        Self {
            socket,
            codec,
            batch,
            sequence: SequenceTracker::default(),
            jitter: Jitter::default(),
            clocks,
            ipdv: Histogram::new(),
            delay: Histogram::new(),
            n_messages: 0,
            dropped: None,
        }
    }

    /// The same for a socket that receives super-buffers.
    #[must_use]
    pub fn with_offload(self) -> Self {
        Self { dropped: Some(DropCounter::default()), ..self }
    }

    /// Receives one call's worth and accounts for it; nothing means that nothing came in time.
    ///
    /// Times count while `part` is the measured one, of datagrams that were sent in it. The kernel tells them where
    /// [`socket::set_report_time`] asked for it.
    ///
    /// # Errors
    /// As [`ReceiveBatch::receive`].
    pub fn step(&mut self, wait: Wait, part: StreamPhase) -> fathom_sys::Result<Option<ReceiveStep>> {
        let Some(n) = self.batch.receive(self.socket, wait)? else { return Ok(None) };
        let before = self.sequence.counts();
        let mut arrived = ReceiveStep::default();
        for index in 0..n {
            let received = self.batch.kernel_time(index);
            let mut drops = self.dropped.as_ref().and_then(|_| self.batch.drops_before(index));
            for datagram in self.batch.segments(index) {
                let Some(header) = self.codec.read(datagram) else {
                    arrived.n_foreign += 1;
                    continue;
                };
                if let (Some(dropped), Some(drops)) = (&mut self.dropped, drops.take()) {
                    dropped.update(drops, header.number.saturating_sub(self.sequence.next()));
                }
                let arrival = self.sequence.arrived(header.number);
                if matches!(arrival, ArrivalKind::InOrder | ArrivalKind::Reordered) {
                    arrived.bytes += u64::try_from(datagram.len()).unwrap_or(0);
                    if let Some(received) = received {
                        let times = ArrivalTime { received, is_measured: part == StreamPhase::Measured };
                        // Of the first copies only: what a duplicate did on its way says nothing of the stream.
                        times.count(header, (&mut self.jitter, self.clocks), (&mut self.ipdv, &mut self.delay));
                    }
                }
                arrived.is_end |= header.phase == StreamPhase::End;
            }
        }
        self.n_messages += u64::try_from(n).unwrap_or(0);
        arrived.counts = self.sequence.counts() - before;
        Ok(Some(arrived))
    }

    /// Where the first message of the last step came from.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        self.batch.source()
    }

    /// One more than the greatest number that has arrived, which is how many were sent at least.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.sequence.next()
    }

    /// The jitter so far, where times were told and neighbours arrived.
    #[must_use]
    pub fn jitter(&self) -> Option<Nanos> {
        self.jitter.estimate()
    }

    /// Settles the account.
    ///
    /// # Errors
    /// As [`socket::drops`].
    pub fn finish(self) -> fathom_sys::Result<ReceiverSummary> {
        let drops = socket::drops(self.socket)?;
        Ok(ReceiverSummary {
            dropped: self.dropped.map_or(u64::from(drops), |dropped| dropped.total(drops)),
            sequence: self.sequence.finish(),
            jitter: self.jitter.estimate(),
            ipdv: self.ipdv,
            delay: self.delay,
            n_messages: self.n_messages,
        })
    }
}

/// When a datagram arrived.
struct ArrivalTime {
    received: Nanos,
    is_measured: bool,
}

impl ArrivalTime {
    fn count(
        self,
        header: DatagramHeader,
        (jitter, clocks): (&mut Jitter, Option<DelayClocks>),
        (ipdv, delay): (&mut Histogram, &mut Histogram),
    ) {
        if header.phase == StreamPhase::End {
            return;
        }
        let difference = jitter.arrived(header.number, (header.sent, self.received));
        if !self.is_measured || header.phase != StreamPhase::Measured {
            return;
        }
        if let Some(difference) = difference {
            ipdv.record(difference.0);
        }
        if let Some(clocks) = clocks {
            delay.record(clocks.delay((header.sent, self.received)).0);
        }
    }
}
