//! Sends one flow of numbered datagrams, step by step.

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

/// A shorter wait is spent spinning: sleeping and waking take this long.
const SPIN_MAX: Nanos = Nanos::from_micros(5);
/// A wait is split into steps of this length, so that the end is noticed even at the lowest rates.
const SLEEP_MAX: Nanos = Nanos::from_millis(50);
/// Super-buffers per call: more are no faster, and 256 KiB still fit in a second-level cache.
const SUPER_BUFFERS: usize = 4;

/// How datagrams are handed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadMode {
    /// Each as its own message.
    Never,
    /// In super-buffers that the kernel or the device segments (`UDP_SEGMENT`), or as single messages if the kernel refuses.
    Preferred,
    /// In super-buffers, or not at all.
    Required,
}

/// The resources of a sender that take memory or time to create; created before the start.
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
    /// Creates pseudo-random payloads for `n_messages` per call. Super-buffers are used only if all datagrams have the same length.
    #[must_use]
    pub fn new(sizes: DatagramSizes, n_messages: usize, joined: OffloadMode, seed: u64) -> Self {
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

    /// Replaces the pseudo-random payload of every datagram; a header overwrites its beginning.
    pub fn fill(&mut self, fill: impl Fn(&mut [u8])) {
        (0..self.batch.shape().count).for_each(|index| fill(self.batch.payload_mut(index)));
    }

    /// Prepares the socket for super-buffers, if any are to be sent.
    ///
    /// # Errors
    /// The kernel refuses super-buffers and they are required.
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

    /// Continues with one message per datagram.
    fn disable_offload(&mut self, error: &fathom_sys::Error) {
        self.batch.set_segments(1);
        self.segments = 1;
        self.refusal = Some(format!("{}: {}", error.call, error.source));
    }
}

/// The result of one send step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendStep {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Calls that the kernel took only in part for lack of room: IP counts the datagram that it gave up as discarded (`__ip_append_data`).
    pub refused: u64,
}

/// The results of sending one flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SenderSummary {
    /// The number of datagrams that were due, if there was a schedule; at least as many as were sent.
    pub intended: Option<u64>,
    /// The largest delay of a datagram after its due time.
    pub lag_max: Nanos,
    /// The time whose datagrams were not sent, because the sender could not run.
    pub given_up: Nanos,
    /// The datagrams per super-buffer at the end; 1 without super-buffers.
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
    /// The number of the next datagram, which equals the number of datagrams that the kernel has taken.
    number: u64,
    wait: Wait,
    lag_max: Nanos,
    /// The delay of the schedule behind the clock.
    given_up: Nanos,
    /// When the schedule was last asked, since the start.
    last_due: Nanos,
}

impl<'s, C: HeaderCodec> Sender<'s, C> {
    /// Creates a flow that follows a schedule, or is as fast as possible without one.
    #[must_use]
    pub fn new(socket: &'s Socket, codec: C, load: SendBuffers, schedule: Option<Schedule>) -> Self {
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

    /// The number of datagrams that the kernel has taken, and so the number of the next one.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Sends the due datagrams, at most one call's worth. If none is due, waits for at most 50 ms and sends nothing.
    ///
    /// Datagrams that the kernel does not take keep their numbers for the next step.
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
                // From now on a send may block until there is room, instead of polling.
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

    /// Sends an end mark, which is numbered like every datagram.
    ///
    /// # Errors
    /// As [`socket::send`].
    pub fn mark_end(&mut self, mark: &mut [u8]) -> fathom_sys::Result<SendStep> {
        if self.buffers.segments > 1 {
            // A mark may be longer than a segment, and must not be split.
            datagram::set_segment_size(self.socket, None)?;
        }
        self.codec.write(DatagramHeader { number: self.number, sent: clock::now(), phase: StreamPhase::End }, mark);
        let Some(bytes) = socket::send(self.socket, mark, Wait::Block)? else {
            return Ok(SendStep { refused: 1, ..SendStep::default() });
        };
        self.number += 1;
        Ok(SendStep { datagrams: 1, bytes: u64::try_from(bytes).unwrap_or(0), refused: 0 })
    }

    /// Returns the results at a time since the start when no more is to be sent.
    ///
    /// Datagrams that became due after the last step do not count as due: the sender may have been waiting for them when the end came.
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

    /// Returns the number of datagrams to send now. If it is 0, waits for the next one first.
    fn wait_for_due(&mut self, now: Nanos, start: Nanos) -> usize {
        let elapsed = now - start;
        let most = self.buffers.batch.shape().count;
        self.record_lag(elapsed);
        let Some(schedule) = &mut self.schedule else { return most };
        // A sender that could not even ask was held up: the machine stood still, or the kernel had no room.
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

    /// Whether a call failed because of super-buffers, which are optional.
    fn is_refusal(&self, error: &fathom_sys::Error) -> bool {
        self.buffers.segments > 1
            && self.buffers.offload == OffloadMode::Preferred
            && datagram::is_segmentation_refused(error)
    }
}
