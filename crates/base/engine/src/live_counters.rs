//! Counters that one thread writes and another reads.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fathom_model::units::{Nanos, approximate, rounded};

use crate::own_cpu::OwnCpu;

/// The most counters that a kind has: as many as fill the two cache lines that a slot takes anyway.
pub(crate) const COUNTERS_MAX: usize = 16;

/// Counters of one worker, on cache lines of their own.
///
/// Aligned to 128 bytes because processors fetch cache lines in pairs. There is one writer, so a plain load and store suffice:
/// no locked instruction on the data path.
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

/// Each power of two of a latency is cut into this many parts, so a glance is wrong by 6 % at most.
const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 3;
/// The powers of two that are told apart above the first parts: up to 34 s; what takes longer counts as that.
const OCTAVES: usize = 32;
const CELLS: usize = (1 << PARTS_BITS) * (OCTAVES + 1);

/// The latencies that one worker saw, coarsely, for whoever looks on while it works.
///
/// A result comes from the worker's own histogram, which nobody sees before the end. This one is small enough to be read twice
/// a second, and to merge those of all workers, which quantiles cannot be. As in a [`WorkerCounters`], there is one writer.
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
    /// Counts one latency; only the worker that owns the glance may call it.
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

/// The middle of the latencies that a cell counts.
fn middle_of(cell: u64) -> Nanos {
    if cell < PARTS {
        return Nanos(cell);
    }
    let octave = cell / PARTS - 1;
    Nanos(((cell % PARTS + PARTS) << octave) + (1 << octave) / 2)
}

/// What all workers' glances held when they were last looked at.
#[derive(Debug)]
pub(crate) struct LiveSnapshot(Vec<u32>);

impl Default for LiveSnapshot {
    fn default() -> Self {
        Self(vec![0; CELLS])
    }
}

impl LiveSnapshot {
    /// The quantile of all that was counted since the last look; nothing when nothing was.
    pub(crate) fn quantile_since_last(&mut self, glances: &[LiveHistogram], q: f64) -> Option<Nanos> {
        let mut grown = [0_u64; CELLS];
        for (cell, (grown, seen)) in grown.iter_mut().zip(&mut self.0).enumerate() {
            let sum =
                glances.iter().fold(0_u32, |sum, live| sum.wrapping_add(live.cells[cell].load(Ordering::Relaxed)));
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
        let glances = [LiveHistogram::default(), LiveHistogram::default()];
        let mut seen = LiveSnapshot::default();
        assert_eq!(seen.quantile_since_last(&glances, 0.99), None);
        (0..990).for_each(|_| glances[0].record(Nanos::from_micros(100)));
        (0..20).for_each(|_| glances[1].record(Nanos::from_millis(5)));
        let [p50, p99] = [0.5, 0.99].map(|q| LiveSnapshot::default().quantile_since_last(&glances, q).unwrap().0);
        assert!((94_000..106_000).contains(&p50) && (4_700_000..5_300_000).contains(&p99), "{p50} {p99}");
        seen.quantile_since_last(&glances, 0.5);
        assert_eq!(seen.quantile_since_last(&glances, 0.5), None);
        glances[1].record(Nanos::MAX);
        assert!(seen.quantile_since_last(&glances, 0.5).unwrap() > Nanos::from_secs(30));
    }
}
