//! Receives one flow of numbered datagrams, step by step.

use std::net::SocketAddr;

use fathom_model::{Histogram, PeerClock, units::Nanos};
use fathom_sys::socket::{
    self, Socket, Wait,
    datagram::{self, BatchShape, ReceiveBatch},
    timestamping::KernelClockOffset,
};

use super::{
    DatagramHeader, HeaderCodec, OffloadMode, SequenceCounts, SequenceTracker, StreamPhase,
    gap_times::GapTimes,
    jitter::Jitter,
    sequence::{ArrivalKind, SequenceSummary},
};

/// Room for the longest super-buffer.
const SUPER_BUFFER: usize = 65_535;
/// Super-buffers per call: 512 KiB, which stay in the second-level cache.
const SUPER_BUFFERS: usize = 8;
/// Linux senders before 6.9 put up to 64 datagrams in one super-buffer, 6.9 and later up to 128.
const SEGMENTS_MAX: u64 = 128;

/// The result of one receive step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveStep {
    /// The classification of the datagrams.
    pub counts: SequenceCounts,
    /// Payload bytes of the datagrams counted as received.
    pub bytes: u64,
    /// Datagrams of other senders.
    pub n_foreign: u64,
    /// Whether an end mark was among them.
    pub is_end: bool,
}

/// The results of a flow.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiverSummary {
    /// The outcome of the numbers.
    pub sequence: SequenceSummary,
    /// The final jitter, if timestamps were available and consecutive datagrams arrived.
    pub jitter: Option<Nanos>,
    /// Delay differences of consecutive datagrams of the measured part.
    pub ipdv: Histogram,
    /// One-way delays of the measured part, if the clocks of both ends are known.
    pub delay: Histogram,
    /// How much longer than the fastest one the datagrams before gaps in the numbers took, if timestamps were available.
    pub before_gaps: Histogram,
    /// Datagrams that the socket dropped because its buffer was full.
    pub dropped: u64,
    /// The number of messages from the kernel: fewer than datagrams if it joined some.
    pub n_messages: u64,
}

/// A flow that is being received.
pub struct Receiver<'s, C> {
    socket: &'s Socket,
    codec: C,
    batch: ReceiveBatch,
    sequence: SequenceTracker,
    /// For the kernel's times, which are those of the wall clock.
    clock: KernelClockOffset,
    peer: Option<PeerClock>,
    times: ArrivalTimes,
    n_messages: u64,
    dropped: Option<DropCounter>,
}

/// Drops of a socket that receives super-buffers, each of which the kernel counts as one (`__udp_enqueue_schedule_skb`).
///
/// The count arrives with the next queued message; the numbers missing before that message were in the dropped super-buffers.
#[derive(Debug, Clone, Copy, Default)]
struct DropCounter {
    /// The kernel's count at the last message.
    messages: u32,
    datagrams: u64,
}

impl DropCounter {
    /// Takes the kernel's count at a message, and the number of datagrams missing before it.
    fn update(&mut self, messages: u32, n_missing: u64) {
        let n_dropped = u64::from(messages.wrapping_sub(self.messages));
        self.messages = messages;
        self.datagrams += n_missing.min(n_dropped.saturating_mul(SEGMENTS_MAX));
    }

    /// The total, with the kernel's final count: only end marks followed the last message, each of them a message of its own.
    fn total(self, messages: u32) -> u64 {
        self.datagrams + u64::from(messages.wrapping_sub(self.messages))
    }
}

/// Allocates room for one receive call: a number of datagrams of one size, or super-buffers if the kernel may join datagrams.
///
/// # Errors
/// The kernel refuses super-buffers and they are required.
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
    /// Creates a receiver; its batch is from [`receive_buffers`].
    ///
    /// With the clock of the sender, delays are computed from the send and receive times.
    #[must_use]
    pub fn new(socket: &'s Socket, codec: C, batch: ReceiveBatch, peer: Option<PeerClock>) -> Self {
        Self {
            socket,
            codec,
            batch,
            sequence: SequenceTracker::default(),
            clock: KernelClockOffset::now(),
            peer,
            times: ArrivalTimes::default(),
            n_messages: 0,
            dropped: None,
        }
    }

    /// Enables drop accounting for a socket that receives super-buffers.
    #[must_use]
    pub fn with_offload(self) -> Self {
        Self { dropped: Some(DropCounter::default()), ..self }
    }

    /// Receives with one call and accounts for the datagrams; `None` means that nothing arrived in time.
    ///
    /// Times count while `part` is the measured one, for datagrams that were sent in it. The kernel reports them after
    /// [`socket::set_report_time`].
    ///
    /// # Errors
    /// As [`ReceiveBatch::receive`].
    pub fn step(&mut self, wait: Wait, part: StreamPhase) -> fathom_sys::Result<Option<ReceiveStep>> {
        let Some(n) = self.batch.receive(self.socket, wait)? else { return Ok(None) };
        let now = self.clock.follow();
        let before = self.sequence.counts();
        let mut arrived = ReceiveStep::default();
        for index in 0..n {
            let received = self.batch.kernel_time(index).and_then(|stamp| self.clock.arrival(stamp, now));
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
                        // Only first copies count: the delay of a duplicate is not a property of the stream.
                        self.times.count(header, received, part, self.peer);
                    }
                }
                arrived.is_end |= header.phase == StreamPhase::End;
            }
        }
        self.n_messages += u64::try_from(n).unwrap_or(0);
        arrived.counts = self.sequence.counts() - before;
        Ok(Some(arrived))
    }

    /// The source of the first message of the last step.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        self.batch.source()
    }

    /// The highest number so far plus one: at least this many datagrams were sent.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.sequence.next()
    }

    /// The jitter so far, if timestamps were available and consecutive datagrams arrived.
    #[must_use]
    pub fn jitter(&self) -> Option<Nanos> {
        self.times.jitter.estimate()
    }

    /// Completes the accounting.
    ///
    /// # Errors
    /// As [`socket::drops`].
    pub fn finish(self) -> fathom_sys::Result<ReceiverSummary> {
        let drops = socket::drops(self.socket)?;
        Ok(ReceiverSummary {
            dropped: self.dropped.map_or(u64::from(drops), |dropped| dropped.total(drops)),
            sequence: self.sequence.finish(),
            jitter: self.times.jitter.estimate(),
            ipdv: self.times.ipdv,
            delay: self.times.delay,
            before_gaps: self.times.gaps.finish(),
            n_messages: self.n_messages,
        })
    }
}

/// What the arrival times of a flow say.
#[derive(Default)]
struct ArrivalTimes {
    jitter: Jitter,
    gaps: GapTimes,
    ipdv: Histogram,
    delay: Histogram,
}

impl ArrivalTimes {
    /// Adds a datagram that arrived in a part of the stream.
    fn count(&mut self, header: DatagramHeader, received: Nanos, part: StreamPhase, peer: Option<PeerClock>) {
        if header.phase == StreamPhase::End {
            return;
        }
        let times = (header.sent, received);
        let difference = self.jitter.arrived(header.number, times);
        self.gaps.arrived(header.number, times);
        if part != StreamPhase::Measured || header.phase != StreamPhase::Measured {
            return;
        }
        if let Some(difference) = difference {
            self.ipdv.record(difference.0);
        }
        if let Some(peer) = peer {
            // Zero if the error of the comparison would make it negative.
            self.delay.record((received - peer.ours(header.sent)).0);
        }
    }
}
