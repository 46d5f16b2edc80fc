//! Counters that one thread writes and another reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// The most counters that a kind has: as many as fill the two cache lines that a slot takes anyway.
pub(crate) const COUNTERS_MAX: usize = 16;

/// Counters of one worker, on cache lines of their own.
///
/// Aligned to 128 bytes because processors fetch cache lines in pairs. There is one writer, so a plain load and store suffice:
/// no locked instruction on the data path.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Slot([AtomicU64; COUNTERS_MAX]);

impl Slot {
    /// Adds to a counter; only the worker that owns the slot may call it.
    #[inline]
    pub fn add(&self, counter: usize, amount: u64) {
        let cell = &self.0[counter];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets a counter to the larger of itself and `value`; only the owner may call it.
    #[inline]
    pub fn raise(&self, counter: usize, value: u64) {
        let cell = &self.0[counter];
        if value > cell.load(Ordering::Relaxed) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// The value of a counter, from any thread.
    #[must_use]
    pub fn read(&self, counter: usize) -> u64 {
        self.0[counter].load(Ordering::Relaxed)
    }
}
