//! One flow of numbered datagrams on its way out, step by step.

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    socket::{
        self, Socket, Wait,
        datagram::{self, BatchShape, SendBatch, SendResult},
    },
};

use super::{DatagramHeader, HeaderCodec, StreamPhase};
use crate::{
    payload,
    stream::BEHIND_MAX,
    traffic::{DatagramSizes, Schedule},
};

/// A wait shorter than this is spun away: to sleep and to wake takes as long.
const SPIN_MAX: Nanos = Nanos::from_micros(5);
/// A wait is cut into steps of this length, so that an end is noticed at the lowest rates too.
const SLEEP_MAX: Nanos = Nanos::from_millis(50);
/// Super-buffers per call: more are no faster, and 256 KiB still stay in a second-level cache.
const SUPER_BUFFERS: usize = 4;

/// How datagrams are handed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadMode {
    /// Each as a message of its own.
    Never,
    /// In super-buffers that the kernel or the device cuts (`UDP_SEGMENT`), or as before when it refuses.
    Preferred,
    /// In super-buffers, or not at all.
    Required,
}

/// What a sender needs that takes memory or time to make: made before the start.
pub struct SendBuffers {
    batch: SendBatch,
    sizes: DatagramSizes,
    is_mixed: bool,
    offload: OffloadMode,
    segments: usize,
    /// Why super-buffers were given up.
    refusal: Option<String>,
}

impl SendBuffers {
    /// Pseudo-random payloads, that many messages per call; super-buffers only of datagrams that are all of one length.
    #[must_use]
    pub fn new(sizes: DatagramSizes, (n_messages, joined): (usize, OffloadMode), seed: u64) -> Self {
        let segments = match (joined, sizes.fixed_size()) {
            (OffloadMode::Preferred | OffloadMode::Required, Some(size)) => datagram::segments_of(size),
            _ => 1,
        };
        let count = if segments > 1 { n_messages.min(SUPER_BUFFERS) * segments } else { n_messages };
        let mut batch = SendBatch::new(BatchShape { count, size: sizes.longest() });
        for (index, seed) in (0..count).zip(seed..=u64::MAX) {
            payload::fill(batch.payload_mut(index), seed);
        }
        Self { is_mixed: sizes.fixed_size().is_none(), batch, sizes, offload: joined, segments, refusal: None }
    }

    /// Fills every datagram with something else than pseudo-random bytes; a header is written over its beginning.
    pub fn fill(&mut self, fill: impl Fn(&mut [u8])) {
        (0..self.batch.shape().count).for_each(|index| fill(self.batch.payload_mut(index)));
    }

    /// Prepares the socket for super-buffers, where there are any to be sent.
    ///
    /// # Errors
    /// The kernel's refusal, when super-buffers were asked for without an alternative.
    pub fn enable_offload(&mut self, socket: &Socket) -> fathom_sys::Result<()> {
        if self.segments < 2 {
            return Ok(());
        }
        let size = u16::try_from(self.batch.shape().size).ok();
        match datagram::set_segment_size(socket, size) {
            Ok(()) => self.batch.set_segments(self.segments),
            Err(error) if self.offload == OffloadMode::Required => return Err(error),
            Err(error) => self.disable_offload(&error),
        }
        Ok(())
    }

    /// Goes on with a message for each datagram.
    fn disable_offload(&mut self, error: &fathom_sys::Error) {
        self.batch.set_segments(1);
        self.segments = 1;
        self.refusal = Some(format!("{}: {}", error.call, error.source));
    }
}

/// What one step of a sender achieved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendStep {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Calls of which it did not take all for want of room: IP counts the one that it gave up as discarded (`__ip_append_data`).
    pub refused: u64,
}

/// How the sending of one flow went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderSummary {
    /// How many datagrams were due, where there was a schedule; at least as many as were sent.
    pub intended: Option<u64>,
    /// The longest time by which one left later than it was due.
    pub lag_max: Nanos,
    /// The time whose datagrams were not sent, because the sender could not run.
    pub given_up: Nanos,
    /// Datagrams in a super-buffer at the end; 1 without.
    pub segments: usize,
    /// Why super-buffers were given up.
    pub refusal: Option<String>,
}

/// A flow that is being sent over a connected socket.
pub struct Sender<'s, C> {
    socket: &'s Socket,
    codec: C,
    buffers: SendBuffers,
    schedule: Option<Schedule>,
    /// The number of the next datagram, which is how many the kernel has taken.
    number: u64,
    wait: Wait,
    lag_max: Nanos,
    /// By how much the schedule is behind the clock.
    given_up: Nanos,
    /// When the schedule was last asked, counted from the start.
    last_due: Nanos,
}

impl<'s, C: HeaderCodec> Sender<'s, C> {
    /// A flow that keeps a schedule, or is as fast as possible without one.
    #[must_use]
    pub fn new((socket, codec): (&'s Socket, C), load: SendBuffers, schedule: Option<Schedule>) -> Self {
        let [lag_max, given_up, asked] = [Nanos::ZERO; 3];
        Self {
            socket,
            codec,
            buffers: load,
            schedule,
            number: 0,
            wait: Wait::Never,
            lag_max,
            given_up,
            last_due: asked,
        }
    }

    /// How many datagrams the kernel has taken, and so the number of the next one.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Sends what is due, at most one call's worth; waits when nothing is, at most 50 ms, and then sends nothing.
    ///
    /// What the kernel does not take keeps its numbers for the next step.
    ///
    /// # Errors
    /// As [`SendBatch::send`]; nothing was sent then.
    pub fn step(&mut self, start: Nanos, part: StreamPhase) -> fathom_sys::Result<SendStep> {
        let now = clock::now();
        let count = self.wait_for_due(now, start);
        if count == 0 {
            return Ok(SendStep::default());
        }
        for (index, number) in (0..count).zip(self.number..=u64::MAX) {
            if self.buffers.is_mixed {
                self.buffers.batch.set_length(index, self.buffers.sizes.of(number));
            }
            self.codec.write(DatagramHeader { number, sent: now, phase: part }, self.buffers.batch.payload_mut(index));
        }
        match self.buffers.batch.send(self.socket, 0..count, self.wait) {
            Ok(SendResult::Datagrams(taken)) => {
                self.wait = Wait::Never;
                Ok(self.advance(taken, count))
            }
            Ok(SendResult::WouldBlock | SendResult::NoBuffers) => {
                // From here on the kernel may let us wait for room, instead of being asked again and again.
                self.wait = Wait::Block;
                Ok(SendStep { refused: 1, ..SendStep::default() })
            }
            Err(error) if self.is_refusal(&error) => {
                self.buffers.disable_offload(&error);
                datagram::set_segment_size(self.socket, None)?;
                Ok(SendStep::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a mark of the end, which has a number as all others.
    ///
    /// # Errors
    /// As [`socket::send`].
    pub fn mark_end(&mut self, mark: &mut [u8]) -> fathom_sys::Result<SendStep> {
        if self.buffers.segments > 1 {
            // A mark may be longer than a segment, and must not be cut.
            datagram::set_segment_size(self.socket, None)?;
        }
        self.codec.write(DatagramHeader { number: self.number, sent: clock::now(), phase: StreamPhase::End }, mark);
        let Some(bytes) = socket::send(self.socket, mark, Wait::Block)? else {
            return Ok(SendStep { refused: 1, ..SendStep::default() });
        };
        self.number += 1;
        Ok(SendStep { datagrams: 1, bytes: u64::try_from(bytes).unwrap_or(0), refused: 0 })
    }

    /// How it went, at a time since the start when no more is to be sent.
    ///
    /// What became due after the last step was never to be sent: it may have waited for that when the end came.
    #[must_use]
    pub fn finish(mut self, elapsed: Nanos) -> SenderSummary {
        let elapsed = elapsed.min(self.last_due);
        self.record_lag(elapsed);
        SenderSummary {
            intended: self.schedule.map(|schedule| schedule.total_due(elapsed).max(self.number)),
            lag_max: self.lag_max,
            given_up: self.given_up,
            segments: self.buffers.segments,
            refusal: self.buffers.refusal,
        }
    }

    /// How many datagrams are to be sent now; waits for the next one when none is, and then says none.
    fn wait_for_due(&mut self, now: Nanos, start: Nanos) -> usize {
        let elapsed = now - start;
        let most = self.buffers.batch.shape().count;
        self.record_lag(elapsed);
        let Some(schedule) = &mut self.schedule else { return most };
        // Who could not even ask was held up: by a machine that stood still, or by a kernel that had no room.
        self.given_up += (elapsed - self.last_due) - BEHIND_MAX;
        self.last_due = elapsed;
        let at = elapsed - self.given_up;
        let due = schedule.due(at, u64::try_from(most).unwrap_or(1));
        if due > 0 {
            return usize::try_from(due).unwrap_or(most);
        }
        let wait = schedule.next_at() - at;
        if wait > SPIN_MAX {
            clock::sleep_until(now + wait.min(SLEEP_MAX));
        } else {
            std::hint::spin_loop();
        }
        0
    }

    fn record_lag(&mut self, elapsed: Nanos) {
        if let Some(schedule) = &mut self.schedule {
            self.lag_max = self.lag_max.max((elapsed - self.given_up) - schedule.next_at());
        }
    }

    fn advance(&mut self, taken: usize, of: usize) -> SendStep {
        let datagrams = u64::try_from(taken).unwrap_or(0);
        let bytes: usize = (0..taken).map(|index| self.buffers.batch.length(index)).sum();
        self.number += datagrams;
        if let Some(schedule) = &mut self.schedule {
            schedule.advance(datagrams);
        }
        SendStep { datagrams, bytes: u64::try_from(bytes).unwrap_or(0), refused: u64::from(taken < of) }
    }

    /// Whether a call failed because of super-buffers, which may be done without.
    fn is_refusal(&self, error: &fathom_sys::Error) -> bool {
        self.buffers.segments > 1
            && self.buffers.offload == OffloadMode::Preferred
            && datagram::is_segmentation_refused(error)
    }
}
