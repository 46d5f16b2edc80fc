//! Counts in user space the same quantities as the sink counts in XDP.

use fathom_model::units::{Frames, Nanos};

use crate::xdp::{ExpectedFrames, FrameCounts, FrameTimes};
use fathom_wire::{FrameSequence, Mark};

/// The counts and times of arrived frames.
#[derive(Debug)]
pub(super) struct UserSpaceCounter {
    expected: ExpectedFrames,
    arrivals: FrameCounts,
    times: FrameTimes,
    flows: Vec<Flow>,
}

/// The state of a flow.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    order: FrameSequence,
    /// The latency of the frame with the highest number.
    latency: Option<u32>,
}

/// How far a stamp may be later than its arrival. The offset between two clocks is measured by reading one after the other.
const CLOCK_ERROR_MAX: u32 = 1_000_000;

impl UserSpaceCounter {
    pub(super) fn of(expected: ExpectedFrames) -> Self {
        let n_flows = usize::try_from(expected.n_flows).unwrap_or(usize::MAX);
        let (arrivals, times) = (FrameCounts::default(), FrameTimes::default());
        Self { expected, arrivals, times, flows: vec![Flow::default(); n_flows] }
    }

    pub(super) const fn expected(&self) -> &ExpectedFrames {
        &self.expected
    }

    pub(super) const fn arrivals(&self) -> FrameCounts {
        self.arrivals
    }

    pub(super) const fn times(&self) -> &FrameTimes {
        &self.times
    }

    /// Counts a frame. `at` is its arrival time, `last` the arrival of the previous frame by the same queue.
    pub(super) fn count(&mut self, frame: &[u8], at: Nanos, last: &mut Option<Nanos>) {
        let mark = self.expected.mark(frame);
        self.arrivals.frames += Frames(u64::from(mark.is_some() || self.expected.is_unmarked(frame)));
        let Some(mark) = mark else { return };
        if let Some(last) = last.replace(at) {
            self.times.gap.record(at.since(last).0);
        }
        let flow = usize::try_from(mark.flow).ok().and_then(|flow| self.flows.get_mut(flow));
        let Some(flow) = flow else { return };
        let latency = latency_of(&mark, at);
        if let Some(latency) = latency {
            self.times.latency.record(latency.into());
            // Two frames that were sent one after the other: RFC 3393 section 4.5, RFC 5481 section 4.1.
            let before = flow.latency.filter(|_| mark.sequence == flow.order.next);
            if let Some(before) = before {
                self.times.variation.record(latency.abs_diff(before).into());
            }
        }
        let earlier = flow.order;
        flow.order.record(mark.sequence);
        if flow.order.next > earlier.next {
            flow.latency = latency;
        }
        self.arrivals.reordered += Frames(flow.order.reordered - earlier.reordered);
        self.arrivals.duplicates += Frames(flow.order.duplicates - earlier.duplicates);
    }
}

/// Returns the latency of a frame, if it carries a stamp. The stamp has 32 bits, and so has the difference.
fn latency_of(mark: &Mark, at: Nanos) -> Option<u32> {
    let low = u32::try_from(at.0 & u64::from(u32::MAX)).expect("32 bits are left");
    let latency = low.wrapping_sub(mark.sent);
    (mark.sent != 0).then_some(if latency > u32::MAX - CLOCK_ERROR_MAX { 0 } else { latency })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::{RateSteps, UnrelatedFrames};
    use fathom_wire::MarkOffsets;

    const TAG: u32 = 0x1234_5678;

    fn account(n_flows: u32) -> UserSpaceCounter {
        let stepping = RateSteps::None;
        UserSpaceCounter::of(ExpectedFrames {
            tag: TAG,
            places: vec![MarkOffsets::START],
            n_flows,
            pktgen: None,
            rate_steps: stepping,
            unrelated: UnrelatedFrames::default(),
        })
    }

    /// A frame of flow 0 with this number and stamp.
    fn frame(sequence: u64, sent: u32) -> Vec<u8> {
        let mut frame = vec![0; MarkOffsets::END];
        frame[MarkOffsets::START..].copy_from_slice(&Mark { tag: TAG, flow: 0, sequence, sent }.bytes());
        frame
    }

    #[test]
    fn latency_variation_and_gaps_are_those_of_the_frames_they_belong_to() {
        let (mut account, mut last) = (account(1), None);
        // Number 2 is missing, number 4 is late by one place, number 6 has no stamp. The stamp of 3 is before a wrap of its 32
        // bits.
        let turn = 1_u64 << 32;
        let frames = [
            (0, 1_000, turn + 1_010),
            (1, 2_000, turn + 2_015),
            (3, u32::MAX, 2 * turn + 20),
            (5, 100, 2 * turn + 130),
            (4, 90, 2 * turn + 140),
            (6, 0, 2 * turn + 150),
        ];
        for (number, sent, at) in frames {
            account.count(&frame(number, sent), Nanos(at), &mut last);
        }
        let times = account.times();
        assert_eq!((times.latency.count(), times.latency.min(), times.latency.max()), (5, Some(10), Some(50)));
        assert_eq!((times.variation.count(), times.variation.max()), (1, Some(5)));
        assert_eq!((times.gap.count(), times.gap.min()), (5, Some(10)));
        let arrivals = account.arrivals();
        assert_eq!((arrivals.frames, arrivals.reordered, arrivals.duplicates), (Frames(6), Frames(1), Frames(0)));
    }

    #[test]
    fn a_stamp_a_little_after_its_arrival_is_no_latency_of_seconds() {
        let (mut account, mut last) = (account(1), None);
        account.count(&frame(0, 5_000), Nanos(4_990), &mut last);
        assert_eq!(account.times().latency.max(), Some(0));
    }

    #[test]
    fn frames_of_others_have_no_times() {
        let (mut account, mut last) = (account(1), None);
        account.count(&[7; 60], Nanos(1), &mut last);
        assert_eq!((account.arrivals(), last, account.times().gap.count()), (FrameCounts::default(), None, 0));
    }
}
