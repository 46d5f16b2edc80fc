//! Tracks the sequence numbers of arrived frames: their order, and duplicates.

/// How many of the last numbers are tracked individually.
pub const SEQUENCE_WINDOW: u64 = 64;

/// The order of one flow, in constant memory.
///
/// A frame is reordered if one with a higher number came before it (RFC 4737 section 3.3). Of two frames with the same number,
/// the second is a duplicate if the number is among the last 64; an older one counts as reordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameSequence {
    /// The highest number so far, plus one.
    pub next: u64,
    /// The recent numbers that have arrived: bit 0 is for the highest.
    pub recent: u64,
    /// Frames that arrived after one with a higher number.
    pub reordered: u64,
    /// Frames whose number had already arrived.
    pub duplicates: u64,
}

impl FrameSequence {
    /// Records a frame with this number.
    pub fn record(&mut self, number: u64) {
        if number >= self.next {
            let ahead = number - self.next;
            let kept = if ahead < SEQUENCE_WINDOW - 1 { self.recent << (ahead + 1) } else { 0 };
            self.recent = kept | 1;
            self.next = number.wrapping_add(1);
            return;
        }
        let age = self.next - 1 - number;
        if age >= SEQUENCE_WINDOW {
            self.reordered += 1;
        } else if self.recent & 1 << age == 0 {
            self.recent |= 1 << age;
            self.reordered += 1;
        } else {
            self.duplicates += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(numbers: impl IntoIterator<Item = u64>) -> (u64, u64, u64) {
        let mut sequence = FrameSequence::default();
        for number in numbers {
            sequence.record(number);
        }
        (sequence.next, sequence.reordered, sequence.duplicates)
    }

    #[test]
    fn frames_in_order_with_gaps_are_not_reordered() {
        assert_eq!(counts([0, 1, 2, 5, 70, 200, 201]), (202, 0, 0));
    }

    #[test]
    fn a_late_frame_is_reordered_once_and_a_duplicate_after_that() {
        assert_eq!(counts([0, 2, 1, 1, 2, 3]), (4, 1, 2));
    }

    #[test]
    fn what_is_older_than_the_memory_is_taken_for_late() {
        assert_eq!(counts((0..=64).chain([1])), (65, 0, 1));
        assert_eq!(counts((0..=64).chain([0])), (65, 1, 0));
    }
}
