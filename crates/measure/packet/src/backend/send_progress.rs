//! The progress of a worker in user space: which frames are due, and their content.

use fathom_engine::WorkerHandle;
use fathom_model::units::Nanos;
use fathom_sys::clock;

use super::{
    Timestamping, WorkerLoad, counter,
    departures::{DepartureSchedule, SchedulePoll},
};
use crate::craft::{ChangePer, FrameSet, ZeroChecksum};
use fathom_wire::Mark;

/// A sleep may end this late (timer slack and wake-up), so shorter waits spin.
const SLEEP_ERROR: Nanos = Nanos::from_micros(100);
/// The longest sleep between two checks for the end of the trial.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);

/// The frames that one worker has yet to send.
#[derive(Debug)]
pub(super) struct SendProgress {
    load: WorkerLoad,
    departures: Option<DepartureSchedule>,
    /// The last poll of the schedule. The frames due then are sent as of that time.
    poll: SchedulePoll,
    n_left: u64,
    frames: FrameNumbers,
    /// Present if nothing changes but the mark.
    mark_update: Option<MarkUpdate>,
}

/// Updates a frame that holds another frame of its flow, if only the mark changes.
#[derive(Debug)]
struct MarkUpdate {
    mark_at: usize,
    /// Each checksum over the mark: its offset, how zero is written, and the sum of everything but the mark.
    checksums: Vec<(usize, ZeroChecksum, u64)>,
}

impl MarkUpdate {
    fn of(blueprint: &FrameSet) -> Option<Self> {
        let [shape] = blueprint.templates.as_slice() else { return None };
        let is_constant = blueprint.n_flows == 1 && shape.changes.iter().all(|edit| edit.per == ChangePer::Flow);
        let mark_at = shape.mark_at.filter(|_| is_constant)?;
        let first = blueprint.frame_index(0, 0, [0; Mark::LENGTH]);
        let covering = |n: usize| shape.changes.iter().filter(move |edit| edit.cover.contains(n));
        let rest = |n: usize| covering(n).map(|edit| u64::from(edit.checksum_part(edit.value(&first)))).sum::<u64>();
        let numbered = shape.checksums.iter().enumerate().filter(|(n, _)| shape.mark_cover.contains(*n));
        let checksums = numbered
            .map(|(n, checksum)| (checksum.at, checksum.zero, u64::from(checksum.base.value()) + rest(n)))
            .collect();
        Some(Self { mark_at, checksums })
    }

    #[inline]
    fn write(&self, frame: &mut [u8], mark: &Mark) {
        frame[self.mark_at..self.mark_at + Mark::LENGTH].copy_from_slice(&mark.bytes());
        let halves = u64::from(mark.tag) + u64::from(mark.flow) + u64::from(mark.sent);
        let sequence = mark.sequence & (u64::MAX >> 16);
        let part = halves + (sequence >> 32) + (sequence & u64::from(u32::MAX));
        for (at, zero, rest) in &self.checksums {
            frame[*at..*at + 2].copy_from_slice(&zero.checksum_of(rest + part).to_be_bytes());
        }
    }
}

/// The frames of one worker's flows in order: the flow, and the sequence number in it.
#[derive(Debug, Clone)]
pub(super) struct FrameNumbers {
    flow: u32,
    sequence: u64,
    first: u32,
    step: u32,
    n_flows: u32,
}

/// The template that a buffer holds, so that only changed bytes are written again.
pub(super) type LastTemplate = Option<u16>;

impl FrameNumbers {
    pub(super) fn of(load: &WorkerLoad) -> Self {
        let (first, step) = load.flows();
        Self { flow: first, sequence: 0, first, step, n_flows: load.frames.n_flows }
    }
}

impl Iterator for FrameNumbers {
    type Item = (u32, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let turn = (self.flow, self.sequence);
        self.flow = self.flow.saturating_add(self.step);
        if self.flow >= self.n_flows {
            (self.flow, self.sequence) = (self.first, self.sequence + 1);
        }
        Some(turn)
    }
}

impl SendProgress {
    pub(super) fn of(load: WorkerLoad) -> Self {
        let (departures, turns) = (load.departures.clone(), FrameNumbers::of(&load));
        let renumbering = MarkUpdate::of(&load.frames);
        let look = SchedulePoll { now: Nanos::ZERO, end: None };
        Self {
            n_left: load.count.unwrap_or(u64::MAX),
            load,
            departures,
            poll: look,
            frames: turns,
            mark_update: renumbering,
        }
    }

    /// Returns whether the worker has finished: the count is reached, or the trial is over and every frame due by then is
    /// accounted for.
    pub(super) fn is_over(&mut self, worker: &WorkerHandle<'_>) -> bool {
        if self.n_left == 0 {
            return true;
        }
        if !worker.is_over() {
            return false;
        }
        let Some(departures) = &self.departures else { return true };
        let end = *self.poll.end.get_or_insert_with(|| clock::now() - worker.start);
        departures.due() > end
    }

    /// From the start to the last poll, when the last frame left; `None` without a schedule.
    pub(super) fn span(&self) -> Option<(Nanos, Nanos)> {
        self.departures.is_some().then_some((Nanos::ZERO, self.poll.now))
    }

    /// Returns how many frames may leave now, at most `most`. If none may, waits a short time for the next one first.
    pub(super) fn wait_for_due(&mut self, worker: &WorkerHandle<'_>, most: usize) -> usize {
        let most = usize::try_from(self.n_left).unwrap_or(usize::MAX).min(most);
        let Some(departures) = &mut self.departures else { return most };
        let now = clock::now();
        self.poll.now = now - worker.start;
        let unsent = departures.drop_late(self.poll);
        if unsent > 0 {
            worker.add(counter::UNSENT, unsent);
            worker.add(counter::INTENDED, unsent);
        }
        let n = departures.n_ready(self.poll, most);
        if n > 0 {
            worker.raise(counter::LAG, self.poll.now.since(departures.due()).0);
            return n;
        }
        let wait = departures.earliest_departure().since(self.poll.now);
        if wait > SLEEP_ERROR {
            clock::sleep_until(now + (wait - SLEEP_ERROR).min(POLL_INTERVAL));
        } else {
            std::hint::spin_loop();
        }
        0
    }

    /// The next frames, without consuming them.
    pub(super) fn upcoming(&self) -> FrameNumbers {
        self.frames.clone()
    }

    /// Consumes the next frames, which have left or never will.
    pub(super) fn advance(&mut self, worker: &WorkerHandle<'_>, n: usize) {
        self.n_left -= n as u64;
        for _ in 0..n {
            self.frames.next();
        }
        if let Some(departures) = &mut self.departures {
            (0..n).for_each(|_| departures.advance(self.poll));
            worker.add(counter::INTENDED, n as u64);
        }
    }

    /// Returns the mark of a frame that leaves now.
    #[inline]
    pub(super) fn mark(&self, flow: u32, sequence: u64, now: Nanos) -> Mark {
        let sent = match self.load.timestamping {
            Timestamping::Clock => low_word(now),
            Timestamping::None => 0,
        };
        let is_after_step = self.departures.as_ref().is_some_and(DepartureSchedule::is_after_step);
        let phase = if is_after_step { Mark::AFTER_STEP } else { 0 };
        Mark { tag: self.load.tag, flow: flow | phase, sequence, sent }
    }

    /// Writes a frame to a buffer that may hold another one of this load; returns its length.
    ///
    /// `now` is the departure time in the mark. All frames that leave together are on the same side of a rate step.
    #[inline]
    pub(super) fn write(
        &self,
        frame: &mut [u8],
        held: &mut LastTemplate,
        flow: u32,
        sequence: u64,
        now: Nanos,
    ) -> usize {
        let blueprint = &*self.load.frames;
        let mark = self.mark(flow, sequence, now);
        if let (Some(renumbering), Some(_)) = (&self.mark_update, *held) {
            renumbering.write(frame, &mark);
            return blueprint.templates[0].bytes.len();
        }
        let place = sequence.wrapping_add(flow.into()) % blueprint.order.len() as u64;
        let number = blueprint.order[usize::try_from(place).expect("a place in a list fits")];
        let shape = &blueprint.templates[usize::from(number)];
        let length = shape.bytes.len();
        if *held != Some(number) {
            frame[..length].copy_from_slice(&shape.bytes);
            *held = Some(number);
        }
        shape.write(&mut frame[..length], &blueprint.frame_index(flow, sequence, mark.bytes()));
        length
    }
}

/// The low 32 bits of a time, which fit into a mark.
fn low_word(now: Nanos) -> u32 {
    u32::try_from(now.0 & u64::from(u32::MAX)).expect("32 bits are left")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fathom_engine::pace::WorkShare;

    use super::*;
    use crate::craft::{ChecksumCover, ChecksumField, FieldChange, FieldValues, FrameIndex, FrameTemplate};
    use fathom_wire::ChecksumSum;

    #[test]
    fn each_worker_has_every_so_manyth_flow_and_sends_them_in_turn() {
        let turns = FrameNumbers { flow: 1, sequence: 0, first: 1, step: 2, n_flows: 4 };
        assert_eq!(turns.take(5).collect::<Vec<_>>(), [(1, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
        let one = FrameNumbers { flow: 0, sequence: 0, first: 0, step: 1, n_flows: 1 };
        assert_eq!(one.take(3).collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2)]);
    }

    #[test]
    fn a_frame_that_is_only_numbered_anew_is_the_same_as_one_that_is_written_whole() {
        let cover = ChecksumCover(0b10);
        let change = FieldValues::Step { first: 49_152, by: 1, n: 16_384.try_into().unwrap() };
        let edit = FieldChange {
            at: 35,
            width: 2,
            fixed: 0,
            shift: 0,
            values: change,
            per: ChangePer::Flow,
            cover: ChecksumCover(0b11),
        };
        let checksum =
            |at, zero| ChecksumField { at, base: ChecksumSum::default().add_bytes(b"what is constant"), zero };
        let mut shape = FrameTemplate {
            mark_at: Some(42),
            mark_cover: cover,
            changes: vec![edit],
            checksums: vec![checksum(24, ZeroChecksum::AsIs), checksum(40, ZeroChecksum::AsOnes)],
            ..FrameTemplate::fixed(vec![7; 64])
        };
        let mut first = shape.bytes.clone();
        shape.write(&mut first, &FrameIndex { flow: 0, number: 0, mark: [0; Mark::LENGTH] });
        shape.bytes = first;
        let blueprint = Arc::new(FrameSet { templates: vec![shape.clone()], order: vec![0], n_flows: 1 });
        let share = WorkShare { idx: 0, of: 1 };
        let load = WorkerLoad {
            frames: blueprint,
            tag: 0xffff_1234,
            timestamping: Timestamping::Clock,
            share,
            departures: None,
            count: None,
            pktgen: None,
        };
        let progress = SendProgress::of(load);
        assert!(progress.mark_update.is_some());
        let (mut frame, mut held) = (vec![0; 64], None);
        for sequence in [0, 1, 0xffff, 0xffff_ffff, 0x1234_5678_9abc, u64::MAX >> 16] {
            let now = Nanos(sequence.wrapping_mul(0x9e37_79b9));
            assert_eq!(progress.write(&mut frame, &mut held, 0, sequence, now), 64);
            let mark = Mark { tag: 0xffff_1234, flow: 0, sequence, sent: low_word(now) };
            let mut whole = shape.bytes.clone();
            shape.write(&mut whole, &FrameIndex { flow: 0, number: sequence, mark: mark.bytes() });
            assert_eq!(frame, whole, "number {sequence:x}");
        }
    }
}
