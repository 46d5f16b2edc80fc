//! Statistics of one-way times with one writer: the thread of a flow adds, another thread reads at the end of each interval.

use std::sync::atomic::{AtomicU64, Ordering};

use fathom_model::units::{Nanos, approximate};

use super::TransitTimes;

/// The times of a flow since its start, and the extremes since the last reading.
///
/// Sums only grow, so that a reader subtracts its last reading. Extremes begin anew with each reading: the reader raises the
/// generation, and the writer replaces the extremes with the first time after that.
#[derive(Debug, Default)]
pub(crate) struct TransitCells {
    n: AtomicU64,
    sum_ns: AtomicU64,
    /// The sum of squares in square microseconds.
    squares_us: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
    interval_min_ns: AtomicU64,
    interval_max_ns: AtomicU64,
    generation: AtomicU64,
    written_generation: AtomicU64,
}

/// The sums and extremes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TransitReading {
    n: u64,
    sum_ns: u64,
    squares_us: u64,
    min_ns: u64,
    max_ns: u64,
}

fn load(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

fn store(cell: &AtomicU64, value: u64) {
    cell.store(value, Ordering::Relaxed);
}

impl TransitCells {
    /// Adds a time; only the thread of the flow may call it.
    pub(crate) fn add(&self, transit: Nanos) {
        let n = load(&self.n);
        let micros = transit.0 / 1000;
        let generation = load(&self.generation);
        let is_new = load(&self.written_generation) != generation || n == 0;
        store(&self.interval_min_ns, if is_new { transit.0 } else { load(&self.interval_min_ns).min(transit.0) });
        store(&self.interval_max_ns, if is_new { transit.0 } else { load(&self.interval_max_ns).max(transit.0) });
        store(&self.written_generation, generation);
        store(&self.min_ns, if n == 0 { transit.0 } else { load(&self.min_ns).min(transit.0) });
        store(&self.max_ns, load(&self.max_ns).max(transit.0));
        store(&self.sum_ns, load(&self.sum_ns).wrapping_add(transit.0));
        store(&self.squares_us, load(&self.squares_us).wrapping_add(micros.saturating_mul(micros)));
        store(&self.n, n + 1);
    }

    /// Reads the sums with the extremes of the whole flow.
    pub(crate) fn total(&self) -> TransitReading {
        TransitReading { min_ns: load(&self.min_ns), max_ns: load(&self.max_ns), ..self.sums() }
    }

    /// Reads the sums with the extremes since the last call, and begins new extremes.
    pub(crate) fn interval(&self) -> TransitReading {
        let reading =
            TransitReading { min_ns: load(&self.interval_min_ns), max_ns: load(&self.interval_max_ns), ..self.sums() };
        self.generation.fetch_add(1, Ordering::Relaxed);
        reading
    }

    fn sums(&self) -> TransitReading {
        TransitReading {
            n: load(&self.n),
            sum_ns: load(&self.sum_ns),
            squares_us: load(&self.squares_us),
            ..TransitReading::default()
        }
    }
}

impl TransitReading {
    /// Returns the times since an earlier reading; `None` if there were none.
    pub(crate) fn since(&self, earlier: &Self) -> Option<TransitTimes> {
        let n = self.n.saturating_sub(earlier.n);
        if n == 0 {
            return None;
        }
        let sum = Nanos(self.sum_ns.wrapping_sub(earlier.sum_ns));
        let mean_us = approximate(sum.0) / 1e3 / approximate(n);
        let squares = approximate(self.squares_us.wrapping_sub(earlier.squares_us));
        // Steiner's theorem; the squares are of whole microseconds, so that the difference may be below zero.
        let squares_us = (squares - mean_us * mean_us * approximate(n)).max(0.0);
        Some(TransitTimes { n, min: Nanos(self.min_ns), max: Nanos(self.max_ns), sum, squares_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_its_own_extremes_and_the_total_those_of_all() {
        let cells = TransitCells::default();
        for micros in [30, 10] {
            cells.add(Nanos::from_micros(micros));
        }
        let first = cells.interval();
        let times = first.since(&TransitReading::default()).unwrap();
        assert_eq!((times.n, times.min, times.max), (2, Nanos::from_micros(10), Nanos::from_micros(30)));
        assert_eq!((times.mean(), times.squares_us), (Some(Nanos::from_micros(20)), 200.0));
        cells.add(Nanos::from_micros(20));
        let second = cells.interval();
        let times = second.since(&first).unwrap();
        assert_eq!((times.n, times.min, times.max), (1, Nanos::from_micros(20), Nanos::from_micros(20)));
        assert_eq!(cells.interval().since(&second), None, "nothing arrived");
        let total = cells.total().since(&TransitReading::default()).unwrap();
        assert_eq!((total.n, total.min, total.max), (3, Nanos::from_micros(10), Nanos::from_micros(30)));
        assert_eq!(total.deviation(), Some(Nanos::from_micros(10)));
    }
}
