//! Counters that wrap around at 32 bits.

/// Between two samples a counter grows by less than this; a larger step is a restart.
///
/// At five samples per second that is ten billion packets per second; a counter that restarts has rarely counted this many.
const STEP_MAX: u32 = 1 << 31;

/// A 32-bit counter, extended beyond its range.
#[derive(Clone, Default)]
pub(super) struct WrappingCounter {
    shown: u32,
    total: u64,
}

impl WrappingCounter {
    /// Returns the count from zero.
    ///
    /// A counter that is new, as that of a queueing discipline that was replaced, counts from zero again.
    pub(super) fn follow(&mut self, shown: u32) -> u64 {
        let step = shown.wrapping_sub(self.shown);
        self.total += u64::from(if step < STEP_MAX { step } else { shown });
        self.shown = shown;
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_32_bits_goes_on_where_it_wraps() {
        let mut counter = WrappingCounter::default();
        assert_eq!(counter.follow(0xffff_fff0), 0xffff_fff0);
        assert_eq!(counter.follow(0x10), 0x1_0000_0010);
        assert_eq!(counter.follow(0x10), 0x1_0000_0010);
    }

    #[test]
    fn a_counter_that_restarts_adds_no_more_than_it_shows() {
        let mut counter = WrappingCounter::default();
        assert_eq!(counter.follow(5_000), 5_000);
        assert_eq!(counter.follow(0), 5_000);
        assert_eq!(counter.follow(7), 5_007);
    }
}
