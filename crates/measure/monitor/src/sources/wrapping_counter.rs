//! Counters that wrap around at 32 bits.

/// A 32-bit counter, extended beyond its range.
#[derive(Clone, Default)]
pub(super) struct WrappingCounter {
    shown: u32,
    total: u64,
}

impl WrappingCounter {
    /// Returns the count from zero, right while it grows by less than 2³² between two samples.
    pub(super) fn follow(&mut self, shown: u32) -> u64 {
        self.total += u64::from(shown.wrapping_sub(self.shown));
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
        assert_eq!(counter.follow(0x0f), 0x2_0000_000f);
    }
}
