//! Counters that one thread writes and another reads.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fathom_model::units::{Nanos, approximate, rounded};

use crate::own_cpu::OwnCpu;

/// The maximum number of counters per test kind: the number that fills the two cache lines of a slot.
pub(crate) const COUNTERS_MAX: usize = 16;

/// The counters of one worker, on their own cache lines.
///
/// Aligned to 128 bytes because processors fetch cache lines in pairs. There is one writer, so a plain load and store are enough and the
/// data path needs no locked instruction.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters([AtomicU64; COUNTERS_MAX]);

impl WorkerCounters {
    /// Adds to a counter; only the worker that owns the slot may call it.
    #[inline]
    pub fn add(&self, counter: usize, amount: u64) {
        let cell = &self.0[counter];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Raises a counter to `value` if it is lower; only the worker that owns the slot may call it.
    #[inline]
    pub fn raise(&self, counter: usize, value: u64) {
        let cell = &self.0[counter];
        if value > cell.load(Ordering::Relaxed) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the value of a counter. Any thread may call it.
    #[must_use]
    pub fn read(&self, counter: usize) -> u64 {
        self.0[counter].load(Ordering::Relaxed)
    }
}

/// The number of cells per power of two, so that a displayed latency is off by 6 % at most.
const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 3;
/// The number of powers of two above the first cells: up to 34 s. Longer latencies count in the last cell.
const OCTAVES: usize = 32;
const CELLS: usize = (1 << PARTS_BITS) * (OCTAVES + 1);

/// A coarse histogram of one worker's latencies for the live view.
///
/// Results come from the worker's own histogram, which is read only at the end. This one is small enough to be read twice a second and can
/// be merged across workers, unlike quantiles. As with [`WorkerCounters`], there is one writer.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct LiveHistogram {
    cells: [AtomicU32; CELLS],
    /// The processor time of the worker.
    pub(crate) cpu: OwnCpu,
}

impl Default for LiveHistogram {
    fn default() -> Self {
        Self { cells: [const { AtomicU32::new(0) }; CELLS], cpu: OwnCpu::default() }
    }
}

impl LiveHistogram {
    /// Counts one latency; only the worker that owns the histogram may call it.
    #[inline]
    pub(crate) fn record(&self, latency: Nanos) {
        let cell = &self.cells[cell_of(latency)];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

#[inline]
fn cell_of(latency: Nanos) -> usize {
    let octave = latency.0.checked_ilog2().and_then(|log| log.checked_sub(PARTS_BITS));
    let cell = octave.map_or(latency.0, |octave| PARTS * u64::from(octave) + (latency.0 >> octave));
    usize::try_from(cell).unwrap_or(CELLS).min(CELLS - 1)
}

/// The midpoint of the latencies that a cell counts.
fn middle_of(cell: u64) -> Nanos {
    if cell < PARTS {
        return Nanos(cell);
    }
    let octave = cell / PARTS - 1;
    Nanos(((cell % PARTS + PARTS) << octave) + (1 << octave) / 2)
}

/// The sums over all workers' live histograms at the last read.
#[derive(Debug)]
pub(crate) struct LiveSnapshot(Vec<u32>);

impl Default for LiveSnapshot {
    fn default() -> Self {
        Self(vec![0; CELLS])
    }
}

impl LiveSnapshot {
    /// Returns the quantile of the latencies counted since the last call; `None` if there were none.
    pub(crate) fn quantile_since_last(&mut self, histograms: &[LiveHistogram], q: f64) -> Option<Nanos> {
        let mut grown = [0_u64; CELLS];
        for (cell, (grown, seen)) in grown.iter_mut().zip(&mut self.0).enumerate() {
            let sum =
                histograms.iter().fold(0_u32, |sum, live| sum.wrapping_add(live.cells[cell].load(Ordering::Relaxed)));
            *grown = u64::from(sum.wrapping_sub(*seen));
            *seen = sum;
        }
        let total: u64 = grown.iter().sum();
        let rank = rounded((approximate(total) * q).ceil()).max(1);
        let upto = grown.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        });
        let cell = (0..).zip(upto).find(|(_, upto)| total > 0 && *upto >= rank)?.0;
        Some(middle_of(cell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_is_wrong_by_little() {
        for latency in (0..63).map(|bit| Nanos(1 << bit)).chain((1..2000).map(|step| Nanos(step * 7919))) {
            if latency > Nanos::from_secs(30) {
                continue;
            }
            let middle = middle_of(u64::try_from(cell_of(latency)).unwrap());
            let off = latency.0.abs_diff(middle.0);
            assert!(off * 15 <= latency.0, "{latency} is taken for {middle}");
        }
    }

    #[test]
    fn each_look_shows_what_came_since_the_last_one_on_all_workers() {
        let histograms = [LiveHistogram::default(), LiveHistogram::default()];
        let mut seen = LiveSnapshot::default();
        assert_eq!(seen.quantile_since_last(&histograms, 0.99), None);
        (0..990).for_each(|_| histograms[0].record(Nanos::from_micros(100)));
        (0..20).for_each(|_| histograms[1].record(Nanos::from_millis(5)));
        let [p50, p99] = [0.5, 0.99].map(|q| LiveSnapshot::default().quantile_since_last(&histograms, q).unwrap().0);
        assert!((94_000..106_000).contains(&p50) && (4_700_000..5_300_000).contains(&p99), "{p50} {p99}");
        seen.quantile_since_last(&histograms, 0.5);
        assert_eq!(seen.quantile_since_last(&histograms, 0.5), None);
        histograms[1].record(Nanos::MAX);
        assert!(seen.quantile_since_last(&histograms, 0.5).unwrap() > Nanos::from_secs(30));
    }
}
