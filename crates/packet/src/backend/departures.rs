//! When frames leave: the same whole numbers for a program in the kernel and for a loop in user space.
//!
//! Times are counted in ticks of 2⁻¹⁶ ns from the start, so a minute at a million per second drifts by less than a microsecond.
//! Knows no clock.

use std::sync::Arc;

use fathom_engine::pace::{Process, Share};
use fathom_model::units::{Nanos, PerSec, approximate, rounded};

use crate::craft::mix;

/// Ticks in a nanosecond, as a power of two.
pub(super) const TICK_BITS: u8 = 16;
/// The most frames that may be late together: half of the 256 that small rings and queues hold.
const LATE_MAX: u64 = 128;
/// Random gaps are drawn from as many as this: the means of equally likely parts of an exponential distribution, whose mean is exact
/// and whose standard deviation is too small by less than a ten-thousandth.
pub(super) const N_GAPS: usize = 1 << GAP_BITS;
pub(super) const GAP_BITS: u8 = 14;

/// What distances lie between frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rhythm {
    /// From one burst to the next, or the mean of it.
    pub(super) gap: u64,
    /// Frames that leave at the same time.
    pub(super) burst: u64,
    /// The gaps to draw from at random, and what is drawn follows from.
    pub(super) random: Option<Random>,
    /// A frame that is later than this does not leave any more.
    pub(super) late_max: u64,
    /// The distance that holds from some time on.
    pub(super) turn: Option<Turn>,
}

/// Where the distance between departures changes: the one that is due then or next is the first of the new rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// When, in ticks.
    pub(super) at: u64,
    /// From one burst to the next after that.
    pub(super) gap: u64,
}

/// Gaps as those of a Poisson process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Random {
    pub(super) gaps: Arc<[u64; N_GAPS]>,
    pub(super) seed: u64,
}

/// The departures of one worker, in order: the next one, and how to get to the one after it.
///
/// A sender that catches up after it was held up sends a burst that nobody asked for: the device under test drops it, and the
/// loss is the tool's. So what is late by more than a little never leaves, and is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departures {
    pub(super) rhythm: Rhythm,
    /// When the next one is due, in ticks.
    pub(super) due: u64,
    /// How many came before it.
    n: u64,
}

/// Which frames leave together, and how their bursts are spread over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pattern {
    /// Frames per second of all workers together.
    pub rate: PerSec,
    /// Frames in a burst, at least one.
    pub burst: u32,
    /// How bursts follow each other.
    pub process: Process,
    /// Another rate from some time on, of bursts at equal distances.
    pub step: Option<Step>,
}

/// A change of the rate within a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// When, from the start of the schedule.
    pub at: Nanos,
    /// Frames per second from then on, of all workers together; above zero.
    pub rate: PerSec,
}

impl Departures {
    /// One worker's share of a pattern; nothing for a rate of zero.
    ///
    /// # Panics
    /// Without a frame in a burst, without workers, or with a step of a Poisson process.
    #[must_use]
    pub fn new(pattern: &Pattern, share: Share) -> Option<Self> {
        assert!(pattern.burst > 0 && share.of > 0, "{pattern:?} for {share:?} is nothing to send");
        assert!(pattern.step.is_none() || pattern.process == Process::Constant, "{pattern:?} has gaps of one mean");
        let burst = u64::from(pattern.burst);
        // From one burst of any worker to the next.
        let all = |rate: PerSec| 1e9 / rate.get() * approximate(1 << TICK_BITS) * approximate(burst);
        let own = |rate: PerSec| rounded((all(rate) * approximate(share.of as u64)).ceil()).max(1);
        let gap = own(pattern.rate);
        let turn = pattern.step.map(|step| Turn { at: step.at.0.saturating_mul(1 << TICK_BITS), gap: own(step.rate) });
        let random = match pattern.process {
            Process::Constant => None,
            Process::Poisson { seed } => Some(Random { gaps: exponential(gap), seed: mix(seed, share.idx as u64) }),
        };
        // The shorter distance says what a queue holds, before and after a step.
        let shortest = turn.map_or(gap, |turn| turn.gap.min(gap));
        let late_max = (shortest / burst).saturating_mul(LATE_MAX.max(burst));
        // Each worker's bursts lie between those of the others.
        let due = if random.is_some() { 0 } else { rounded(all(pattern.rate) * approximate(share.idx as u64)) };
        (pattern.rate.get() > 0.0).then_some(Self { rhythm: Rhythm { gap, burst, random, late_max, turn }, due, n: 0 })
    }

    /// When the next one is due.
    #[must_use]
    pub const fn due(&self) -> Nanos {
        Nanos(self.due >> TICK_BITS)
    }

    /// The mean distance from one to the next, where they are nearest.
    #[must_use]
    pub fn mean_gap(&self) -> Nanos {
        let shortest = self.rhythm.turn.map_or(self.rhythm.gap, |turn| turn.gap.min(self.rhythm.gap));
        Nanos((shortest / self.rhythm.burst) >> TICK_BITS)
    }

    /// Whether the next one is of the rate after a step.
    #[must_use]
    pub fn is_after_step(&self) -> bool {
        self.rhythm.is_after_turn(self.due)
    }

    /// Goes on to the one after it.
    #[inline]
    pub fn advance(&mut self) {
        self.n += 1;
        self.due = self.rhythm.after(self.due, self.n);
    }

    /// How many are due by now, at most so many, and none beyond a step.
    #[must_use]
    pub fn count_due(&self, elapsed: Nanos, most: usize) -> usize {
        let (mut due, mut n) = (self.due, self.n);
        let is_after_step = self.is_after_step();
        let is_due = |due: u64| due >> TICK_BITS <= elapsed.0 && self.rhythm.is_after_turn(due) == is_after_step;
        let mut count = 0;
        while count < most && is_due(due) {
            count += 1;
            n += 1;
            due = self.rhythm.after(due, n);
        }
        count
    }

    /// Gives up what is too late to leave; how many that are.
    pub fn give_up_late(&mut self, elapsed: Nanos) -> u64 {
        let now = elapsed.0 << TICK_BITS;
        let mut given_up = 0;
        // Those of the first rate, and then those of the second.
        for _ in 0..2 {
            let Some((too_late, gap)) = self.rhythm.constant_late(self.due, now) else { break };
            self.n += too_late;
            self.due += too_late * gap;
            given_up += too_late;
        }
        while now.saturating_sub(self.due) > self.rhythm.late_max {
            self.advance();
            given_up += 1;
        }
        given_up
    }

    /// Gives up all that was due by the end; how many that are.
    pub fn give_up_due(&mut self, end: Nanos) -> u64 {
        let mut given_up = 0;
        while self.due() <= end {
            self.advance();
            given_up += 1;
        }
        given_up
    }
}

impl Rhythm {
    /// When departure `n` is due, if the one before it is at `due`.
    #[inline]
    fn after(&self, due: u64, n: u64) -> u64 {
        if self.burst > 1 && !n.is_multiple_of(self.burst) {
            return due;
        }
        let gap = match &self.random {
            None => self.gap_at(due),
            Some(random) => {
                let drawn = mix(random.seed, n / self.burst) >> (u64::BITS - u32::from(GAP_BITS));
                random.gaps[usize::try_from(drawn).expect("few bits are left")]
            }
        };
        due.saturating_add(gap)
    }

    #[inline]
    fn is_after_turn(&self, due: u64) -> bool {
        self.turn.is_some_and(|turn| due >= turn.at)
    }

    /// The equal distance from a burst that is due then to the next.
    #[inline]
    fn gap_at(&self, due: u64) -> u64 {
        self.turn.filter(|turn| due >= turn.at).map_or(self.gap, |turn| turn.gap)
    }

    /// How many departures from `due` on are too late, and the distance between them: all of one rate; nothing for other rhythms.
    fn constant_late(&self, due: u64, now: u64) -> Option<(u64, u64)> {
        let gap = self.gap_at(due);
        let too_late = now.saturating_sub(due).saturating_sub(self.late_max).div_ceil(gap);
        let until_turn = self.turn.filter(|turn| due < turn.at).map(|turn| (turn.at - due).div_ceil(gap));
        let is_constant = self.burst == 1 && self.random.is_none();
        is_constant.then(|| (until_turn.map_or(too_late, |until_turn| too_late.min(until_turn)), gap))
    }
}

/// The means of equally likely parts of an exponential distribution with this mean.
fn exponential(mean: u64) -> Arc<[u64; N_GAPS]> {
    let parts = approximate(N_GAPS as u64);
    // The integral of −ln u from 0 to u.
    let integral = |u: f64| if u > 0.0 { u - u * u.ln() } else { 0.0 };
    let part = |n: usize| {
        let (from, to) = (approximate(n as u64) / parts, approximate(n as u64 + 1) / parts);
        rounded((integral(to) - integral(from)) * parts * approximate(mean))
    };
    let gaps: Vec<u64> = (0..N_GAPS).map(part).collect();
    let gaps: Box<[u64; N_GAPS]> = gaps.into_boxed_slice().try_into().expect("there are as many as were made");
    gaps.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Share = Share { idx: 0, of: 1 };

    fn pattern(rate: f64, burst: u32, process: Process) -> Pattern {
        Pattern { rate: PerSec::new(rate).unwrap(), burst, process, step: None }
    }

    fn constant(rate: f64) -> Departures {
        Departures::new(&pattern(rate, 1, Process::Constant), ALONE).unwrap()
    }

    fn times(mut departures: Departures, n: usize) -> Vec<u64> {
        let mut next = || {
            let due = departures.due().0;
            departures.advance();
            due
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn a_constant_rate_neither_drifts_nor_is_exceeded() {
        for rate in [1_000.0, 333_333.0, 1_488_095.0] {
            let mut departures = constant(rate);
            let n = departures.give_up_due(Nanos::from_secs(10));
            assert!(n.abs_diff(rounded(rate * 10.0)) <= 1 && approximate(n - 1) <= rate * 10.0, "{rate}: {n}");
        }
        assert_eq!(Departures::new(&pattern(0.0, 1, Process::Constant), ALONE), None);
    }

    #[test]
    fn a_stall_costs_frames_and_makes_no_burst() {
        let mut departures = constant(1e6);
        assert_eq!(departures.give_up_late(Nanos::from_micros(9)), 0);
        assert_eq!(departures.count_due(Nanos::from_micros(9), 64), 10);
        assert_eq!(departures.count_due(Nanos::from_micros(9), 4), 4);
        // Frames 0 to 5000 are due, and one that is late by 128 µs may still leave.
        assert_eq!(departures.give_up_late(Nanos::from_micros(5_000)), 5_000 - LATE_MAX);
        assert_eq!(departures.due(), Nanos::from_micros(5_000 - LATE_MAX));
        assert_eq!(departures.give_up_late(Nanos::from_micros(5_000)), 0);
    }

    #[test]
    fn a_burst_leaves_at_once_and_keeps_the_rate() {
        let bursts = Departures::new(&pattern(1e6, 4, Process::Constant), ALONE).unwrap();
        assert_eq!(times(bursts.clone(), 9), [0, 0, 0, 0, 4_000, 4_000, 4_000, 4_000, 8_000]);
        let mut late = bursts;
        assert_eq!(late.give_up_late(Nanos::from_micros(1_001)), 876, "whole bursts before 873 µs");
        let long = Departures::new(&pattern(1e6, 1_000, Process::Constant), ALONE).unwrap();
        assert_eq!(
            long.rhythm.late_max >> TICK_BITS,
            1_000_000,
            "a burst may take as long as its distance to the next"
        );
    }

    #[test]
    fn poisson_gaps_are_exponential_and_follow_from_the_seed() {
        let poisson = |seed| {
            let departures = Departures::new(&pattern(1e6, 1, Process::Poisson { seed }), ALONE).unwrap();
            times(departures, 200_001)
        };
        let times = poisson(7);
        assert_eq!(times, poisson(7));
        assert_ne!(times, poisson(8));
        let gaps: Vec<f64> = times.windows(2).map(|pair| approximate(pair[1] - pair[0])).collect();
        let n = approximate(gaps.len() as u64);
        let mean = gaps.iter().sum::<f64>() / n;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((mean / 1_000.0 - 1.0).abs() < 0.01 && (deviation / mean - 1.0).abs() < 0.01, "{mean} {deviation}");
        let beyond = approximate(gaps.iter().filter(|gap| **gap > 3_000.0).count() as u64) / n;
        assert!((beyond - (-3.0_f64).exp()).abs() < 0.003, "{beyond}");
    }

    fn stepped(rate: f64, burst: u32, (at, then): (Nanos, f64)) -> Departures {
        let step = Some(Step { at, rate: PerSec::new(then).unwrap() });
        Departures::new(&Pattern { step, ..pattern(rate, burst, Process::Constant) }, ALONE).unwrap()
    }

    #[test]
    fn a_rate_changes_with_the_first_departure_that_is_due_at_the_step_or_after_it() {
        let step = (Nanos::from_micros(3), 0.5e6);
        assert_eq!(times(stepped(1e6, 1, step), 7), [0, 1_000, 2_000, 3_000, 5_000, 7_000, 9_000]);
        let between = (Nanos(2_500), 0.5e6);
        assert_eq!(times(stepped(1e6, 1, between), 6), [0, 1_000, 2_000, 3_000, 5_000, 7_000]);
        assert_eq!(times(stepped(1e6, 2, step), 8), [0, 0, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000]);
        let mut departures = stepped(1e6, 1, step);
        assert_eq!(departures.count_due(Nanos::from_micros(9), 64), 3, "what leaves together is of one rate");
        (0..3).for_each(|_| departures.advance());
        assert!(departures.is_after_step());
        assert_eq!(departures.count_due(Nanos::from_micros(9), 64), 4);
    }

    #[test]
    fn what_is_too_late_is_the_same_at_once_and_one_by_one_across_a_step() {
        let at = Nanos::from_millis(1);
        for (then, until) in [(0.5e6, 1_050), (0.5e6, 5_000), (0.5e6, 900), (3e6, 1_500), (3e6, 1_001)] {
            let (mut at_once, mut one_by_one) = (stepped(1e6, 1, (at, then)), stepped(1e6, 1, (at, then)));
            let elapsed = Nanos::from_micros(until);
            let given_up = at_once.give_up_late(elapsed);
            let late = |departures: &Departures| (elapsed.0 << TICK_BITS).saturating_sub(departures.due);
            let mut n = 0;
            while late(&one_by_one) > one_by_one.rhythm.late_max {
                one_by_one.advance();
                n += 1;
            }
            assert_eq!((given_up, &at_once), (n, &one_by_one), "{then} at {until} µs");
            assert!(n > 0);
        }
    }

    #[test]
    fn workers_share_a_rate_and_take_turns() {
        let of_worker = |idx| {
            let departures = Departures::new(&pattern(1e6, 1, Process::Constant), Share { idx, of: 3 });
            times(departures.unwrap(), 4)
        };
        let mut all: Vec<u64> = (0..3).flat_map(of_worker).collect();
        all.sort_unstable();
        assert_eq!(all, (0..12).map(|n| n * 1_000).collect::<Vec<_>>());
    }
}
