//! Departure times: the same integer arithmetic for an eBPF program in the kernel and for a loop in user space.
//!
//! Times are counted in ticks of 2⁻¹⁶ ns from the start, so one minute at a million frames per second drifts by less than a
//! microsecond. This module reads no clock.
//!
//! A sender is delayed now and then, by other processes or by the host of a virtual machine. The frames that became due meanwhile
//! must not leave in one clump: the device under test would drop them, and nobody asked for a clump. The sender therefore catches
//! up slightly faster than the schedule, following the generic cell rate algorithm (ITU-T I.371):
//!
//! - A burst (a single frame by default) may start once it is due and `ready` ≤ now + [`TOLERANCE`].
//! - When a burst starts, `ready` becomes max(`ready`, now). Its last frame adds 7/8 of the gap between this burst and the next
//!   to `ready`. Bursts therefore follow each other at no more than 8/7 of the rate, however many were missed. The time counts
//!   from the start of a burst, because a long burst takes a part of the gap to leave.
//! - A frame that is late by more than [`LATE_MAX`] is never sent: it is given up, and `ready` does not change.
//! - After the end of the trial nothing more becomes due. The remaining frames leave by the same rules until all have left or are
//!   too late. Every frame that was due by the end has then either left or been given up.

use std::sync::Arc;

use fathom_engine::pace::{ArrivalProcess, WorkShare};
use fathom_model::units::{Nanos, PerSec, approximate, rounded};

use fathom_statistics::splitmix;

/// Ticks per nanosecond, as a power of two.
pub(super) const TICK_BITS: u8 = 16;
/// How far the frames of one batch may run ahead of their gaps.
///
/// A sender that is on schedule polls it after each batch and hands on a batch of 16 to 64 frames in 10 to 30 µs. Frames that
/// become due meanwhile must leave at once; otherwise there would never be a batch.
const TOLERANCE: Nanos = Nanos::from_micros(32);
/// At high rates the tolerance is smaller: at most this many frames leave together, half of what small rings and queues hold.
const TOGETHER_MAX: u64 = 128;
/// Frames later than this are given up. It is longer than most stalls, and a sender catches up with it within 70 ms.
///
/// At low rates it is longer: a sender can always catch up with as many frames as small queues hold, or with one burst.
const LATE_MAX: Nanos = Nanos::from_millis(10);
/// The limit of lateness after the end of the trial. It keeps the wait for the last frames short at low rates.
pub(super) const OVERTIME: u64 = Nanos::from_secs(1).0 << TICK_BITS;
/// The upper limit of gaps and lateness, about 20 hours, so that sums of times do not overflow.
const GAP_MAX: u64 = 1 << 62;
/// The number of values that random gaps are drawn from. The values are the means of equally likely parts of an exponential
/// distribution. Their mean is exact; their standard deviation is too small by less than 1/10000.
pub(super) const N_GAPS: usize = 1 << GAP_BITS;
pub(super) const GAP_BITS: u8 = 14;

/// The gaps between frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DepartureParams {
    /// The gap between two bursts, or its mean.
    pub(super) gap: u64,
    /// Frames that leave at the same time.
    pub(super) burst: u64,
    /// The values of random gaps and the seed that they are drawn with.
    pub(super) random: Option<RandomGaps>,
    /// How far `ready` may be ahead of the time when a frame leaves.
    pub(super) tolerance: u64,
    /// A frame that is later than this is given up.
    pub(super) late_max: u64,
    /// A change of the gap at a given time.
    pub(super) rate_change: Option<RateChange>,
}

/// A change of the gap between departures. The first departure due at or after `at` is the first of the new rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RateChange {
    /// The time of the change, in ticks.
    pub(super) at: u64,
    /// The gap between two bursts after the change.
    pub(super) gap: u64,
}

/// Gaps of a Poisson process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RandomGaps {
    pub(super) gaps: Arc<[u64; N_GAPS]>,
    pub(super) seed: u64,
}

/// The departures of one worker in order: the next departure, and the rules that lead to the one after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepartureSchedule {
    pub(super) params: DepartureParams,
    pub(super) next: NextDeparture,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextDeparture {
    /// When the frame is due, in ticks.
    pub(super) due: u64,
    /// The time that the catch-up rate allows, in ticks; the frame may leave `tolerance` earlier.
    pub(super) ready: u64,
    /// The number of earlier frames in its burst.
    pub(super) place_in_burst: u64,
    /// The number of earlier bursts.
    pub(super) n_bursts: u64,
}

/// A poll of the schedule: the time now and the end of the trial, if it has ended. Both count from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SchedulePoll {
    pub(super) now: Nanos,
    pub(super) end: Option<Nanos>,
}

/// Which frames leave together, and how their bursts are spread over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeparturePattern {
    /// Frames per second of all workers together.
    pub rate: PerSec,
    /// Frames per burst, at least one.
    pub burst: u32,
    /// How bursts follow each other.
    pub process: ArrivalProcess,
    /// A change to another rate, only for bursts at equal gaps.
    pub rate_step: Option<RateStep>,
}

/// A change of the rate within a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateStep {
    /// The time of the change, from the start of the schedule.
    pub at: Nanos,
    /// Frames per second after the change, of all workers together; above zero.
    pub rate: PerSec,
}

impl SchedulePoll {
    pub(super) const fn ticks(self) -> u64 {
        self.now.0 << TICK_BITS
    }

    /// The time by which a frame must be due to be part of the trial so far.
    fn horizon(self) -> Nanos {
        self.end.map_or(self.now, |end| end.min(self.now))
    }

    fn is_over(self) -> bool {
        self.end.is_some_and(|end| self.now > end)
    }
}

impl DepartureSchedule {
    /// Returns one worker's share of a pattern, or `None` for a rate of zero.
    ///
    /// # Panics
    /// If a burst has no frames, if there are no workers, or if a Poisson process has a rate step.
    #[must_use]
    pub fn new(pattern: &DeparturePattern, share: WorkShare) -> Option<Self> {
        assert!(pattern.burst > 0 && share.of > 0, "{pattern:?} for {share:?} is nothing to send");
        assert!(
            pattern.rate_step.is_none() || pattern.process == ArrivalProcess::Constant,
            "{pattern:?} has gaps of one mean"
        );
        let burst = u64::from(pattern.burst);
        // The gap between consecutive bursts of all workers together.
        let all = |rate: PerSec| 1e9 / rate.get() * approximate(1 << TICK_BITS) * approximate(burst);
        let own = |rate: PerSec| rounded((all(rate) * approximate(share.of as u64)).ceil()).clamp(1, GAP_MAX);
        let gap = own(pattern.rate);
        let turn = pattern
            .rate_step
            .map(|step| RateChange { at: step.at.0.saturating_mul(1 << TICK_BITS), gap: own(step.rate) });
        let random = match pattern.process {
            ArrivalProcess::Constant => None,
            ArrivalProcess::Poisson { seed } => {
                Some(RandomGaps { gaps: exponential(gap), seed: splitmix(seed, share.idx as u64) })
            }
        };
        // The shorter gap determines how much a queue holds, before and after a step.
        let shortest = turn.map_or(gap, |turn| turn.gap.min(gap));
        let bursts_together = (TOGETHER_MAX / burst).max(1);
        let tolerance = (TOLERANCE.0 << TICK_BITS).min((bursts_together - 1).saturating_mul(catch_up_gap(shortest)));
        let few = (shortest / burst).saturating_mul(TOGETHER_MAX.max(burst));
        let late_max = (LATE_MAX.0 << TICK_BITS).max(few).min(GAP_MAX);
        let rhythm = DepartureParams { gap, burst, random, tolerance, late_max, rate_change: turn };
        // The bursts of the workers interleave.
        let is_random = rhythm.random.is_some();
        let due = if is_random { 0 } else { rounded(all(pattern.rate) * approximate(share.idx as u64)).min(GAP_MAX) };
        let next = NextDeparture { due, ready: 0, place_in_burst: 0, n_bursts: 0 };
        (pattern.rate.get() > 0.0).then_some(Self { params: rhythm, next })
    }

    /// Returns when the next frame is due.
    #[must_use]
    pub const fn due(&self) -> Nanos {
        Nanos(self.next.due >> TICK_BITS)
    }

    /// Returns the mean gap between frames, at the higher of the two rates if the rate changes.
    #[must_use]
    pub fn mean_gap(&self) -> Nanos {
        let shortest = self.params.rate_change.map_or(self.params.gap, |turn| turn.gap.min(self.params.gap));
        Nanos((shortest / self.params.burst) >> TICK_BITS)
    }

    /// Returns whether the next frame belongs to the rate after a step.
    #[must_use]
    pub fn is_after_step(&self) -> bool {
        self.params.is_after_rate_change(self.next.due)
    }

    /// Returns the earliest time at which the next frame may leave.
    pub(super) fn earliest_departure(&self) -> Nanos {
        let allowed = self.next.ready.saturating_sub(self.params.tolerance).div_ceil(1 << TICK_BITS);
        self.due().max(Nanos(allowed))
    }

    /// Returns how many frames may leave at this poll: at most `most`, and none from the other side of a rate step.
    pub(super) fn n_ready(&self, look: SchedulePoll, most: usize) -> usize {
        let (mut next, is_after_step) = (self.next, self.is_after_step());
        let (now, horizon) = (look.ticks(), look.horizon().0);
        let mut count = 0;
        while count < most
            && next.due >> TICK_BITS <= horizon
            && next.ready <= now + self.params.tolerance
            && self.params.is_after_rate_change(next.due) == is_after_step
        {
            next = self.params.next_after(next, now);
            count += 1;
        }
        count
    }

    /// Records that the next frame leaves at this poll, and moves on to the one after it.
    #[inline]
    pub(super) fn advance(&mut self, look: SchedulePoll) {
        self.next = self.params.next_after(self.next, look.ticks());
    }

    /// Gives up the frames that are too late; returns their number.
    pub(super) fn drop_late(&mut self, look: SchedulePoll) -> u64 {
        let late_max = if look.is_over() { self.params.late_max.min(OVERTIME) } else { self.params.late_max };
        let part_of_trial = (look.horizon().0 + 1) << TICK_BITS;
        self.drop_before(look.ticks().saturating_sub(late_max).min(part_of_trial))
    }

    /// Gives up all frames that are due before a time in ticks; returns their number.
    fn drop_before(&mut self, until: u64) -> u64 {
        let mut given_up = 0;
        while self.next.due < until {
            let n_bursts = self.params.n_equal(self.next.due, until);
            given_up += n_bursts * self.params.burst - self.next.place_in_burst;
            let gap = self.params.gap(&self.next);
            let due = self.next.due.saturating_add(n_bursts * gap);
            self.next = NextDeparture { due, place_in_burst: 0, n_bursts: self.next.n_bursts + n_bursts, ..self.next };
        }
        given_up
    }
}

impl DepartureParams {
    /// Returns the departure that follows `next` if `next` leaves at `now`.
    #[inline]
    fn next_after(&self, mut next: NextDeparture, now: u64) -> NextDeparture {
        if next.place_in_burst == 0 {
            next.ready = next.ready.max(now);
        }
        next.place_in_burst += 1;
        if next.place_in_burst == self.burst {
            let gap = self.gap(&next);
            next.ready = next.ready.saturating_add(catch_up_gap(gap));
            next.due = next.due.saturating_add(gap);
            (next.place_in_burst, next.n_bursts) = (0, next.n_bursts + 1);
        }
        next
    }

    /// Returns the gap between the burst of a departure and the one after it.
    #[inline]
    fn gap(&self, next: &NextDeparture) -> u64 {
        match &self.random {
            None => self.rate_change.filter(|turn| next.due >= turn.at).map_or(self.gap, |turn| turn.gap),
            Some(random) => {
                let drawn = splitmix(random.seed, next.n_bursts + 1) >> (u64::BITS - u32::from(GAP_BITS));
                random.gaps[usize::try_from(drawn).expect("few bits are left")]
            }
        }
    }

    #[inline]
    fn is_after_rate_change(&self, due: u64) -> bool {
        self.rate_change.is_some_and(|turn| due >= turn.at)
    }

    /// Returns the number of bursts that are due from `due` until `until` at equal gaps; 1 if gaps are random.
    fn n_equal(&self, due: u64, until: u64) -> u64 {
        if self.random.is_some() {
            return 1;
        }
        match self.rate_change {
            Some(turn) if due < turn.at => (until.min(turn.at) - due).div_ceil(self.gap),
            Some(turn) => (until - due).div_ceil(turn.gap),
            None => (until - due).div_ceil(self.gap),
        }
    }
}

/// Returns the minimum gap between bursts while a sender catches up: 7/8 of the scheduled gap.
pub(super) const fn catch_up_gap(gap: u64) -> u64 {
    gap - gap / 8
}

/// Returns the means of equally likely parts of an exponential distribution with this mean.
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
    use proptest::prelude::*;

    use super::{
        super::virtual_sender::{ALONE, SentFrame, Stall, VirtualSender, looks, n_due, next_look, pattern, patterns},
        *,
    };

    const SECOND: Nanos = Nanos::from_secs(1);

    fn constant(rate: f64) -> DepartureSchedule {
        DepartureSchedule::new(&pattern(rate, 1, ArrivalProcess::Constant), ALONE).unwrap()
    }

    fn stall(from_us: u64, until_us: u64) -> Stall {
        Stall { from: Nanos::from_micros(from_us), until: Nanos::from_micros(until_us) }
    }

    /// Runs a trial of 100 ms with these stalls, and checks that each due frame was either sent or given up.
    fn sent(departures: &DepartureSchedule, stalls: &[Stall]) -> VirtualSender {
        let mut sender = VirtualSender::new(departures.clone(), Nanos::from_millis(100));
        sender.run(stalls);
        assert_eq!(sender.n_intended(), n_due(departures.clone(), sender.end));
        sender
    }

    fn times(mut departures: DepartureSchedule, n: usize) -> Vec<u64> {
        let mut next = || {
            let due = departures.due();
            departures.advance(SchedulePoll { now: due, end: None });
            due.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Returns how far bursts at equal gaps ran ahead of the catch-up rate (7/8 of the gap), in ticks. At most the tolerance.
    fn ahead(left: &[SentFrame], gap: u64) -> u64 {
        let mut begun = left.to_vec();
        begun.dedup_by_key(|left| left.due);
        let (mut latest, mut ahead) = (i128::MIN, 0);
        for (n, left) in (0_i128..).zip(begun) {
            let slack = i128::from(left.at) - n * i128::from(catch_up_gap(gap));
            latest = latest.max(slack);
            ahead = ahead.max(latest - slack);
        }
        u64::try_from(ahead).unwrap()
    }

    #[test]
    fn a_constant_rate_neither_drifts_nor_is_exceeded() {
        for rate in [1_000.0, 333_333.0, 1_488_095.0] {
            let n = n_due(constant(rate), SECOND * 10);
            assert!(n.abs_diff(rounded(rate * 10.0)) <= 1 && approximate(n - 1) <= rate * 10.0, "{rate}: {n}");
        }
        assert_eq!(DepartureSchedule::new(&pattern(0.0, 1, ArrivalProcess::Constant), ALONE), None);
    }

    #[test]
    fn what_was_missed_in_a_stall_is_made_good_a_little_faster_than_the_schedule() {
        let departures = constant(1e6);
        let sender = sent(&departures, &[stall(20_000, 21_300)]);
        assert_eq!(sender.n_unsent, 0);
        assert!(ahead(&sender.sent, departures.params.gap) <= departures.params.tolerance);
        let between = |from: Nanos, until: Nanos| {
            let span = (from.0 << TICK_BITS)..(until.0 << TICK_BITS);
            sender.sent.iter().filter(|left| span.contains(&left.at)).count()
        };
        // 37 at once, and then a batch every 5 µs at 8/7 of the rate.
        let after = Nanos::from_micros(21_300);
        assert_eq!(between(after, after + Nanos(1)), 37);
        let faster = between(after + Nanos(1), after + Nanos::from_millis(7));
        assert!((7_990..=8_001).contains(&faster), "{faster} in 7 ms");
        // The remaining 1300 − 37 frames take seven times as long to catch up at 8/7. After that each frame leaves when it is
        // due.
        let mut late = sender.sent.iter().filter(|left| left.at.saturating_sub(left.due) > 5_000 << TICK_BITS);
        let last = late.next_back().unwrap().at >> TICK_BITS;
        assert!((29_900_000..30_400_000).contains(&last), "{last}");
    }

    #[test]
    fn what_is_later_than_ten_milliseconds_is_given_up() {
        let sender = sent(&constant(1e6), &[stall(20_000, 35_000)]);
        // Frames due by 19,995 µs have left. The rest of those due before 25 ms are given up.
        let departures = constant(1e6);
        let before = |until: u64| n_due(departures.clone(), Nanos(until * 1_000 - 1));
        assert_eq!(sender.n_unsent, before(25_000) - n_due(departures.clone(), Nanos::from_micros(19_995)));
        assert_eq!(sender.lag() >> TICK_BITS, 10_000_000, "one that is as late as may be leaves");
        assert_eq!(constant(1e3).params.late_max >> TICK_BITS, 128_000_000, "few frames may all be late");
    }

    #[test]
    fn no_more_leave_together_than_half_a_small_ring() {
        for (rate, burst, most) in
            [(1e5, 1, 4), (1e6, 1, 37), (1e7, 1, 128), (5e7, 1, 128), (1e7, 50, 100), (1e8, 500, 500)]
        {
            let departures = DepartureSchedule::new(&pattern(rate, burst, ArrivalProcess::Constant), ALONE).unwrap();
            let look = SchedulePoll { now: Nanos::from_millis(5), end: None };
            assert_eq!(departures.n_ready(look, usize::MAX), most, "{rate} in bursts of {burst}");
        }
    }

    #[test]
    fn a_burst_leaves_at_once_and_keeps_the_rate() {
        let bursts = DepartureSchedule::new(&pattern(1e6, 4, ArrivalProcess::Constant), ALONE).unwrap();
        assert_eq!(times(bursts, 9), [0, 0, 0, 0, 4_000, 4_000, 4_000, 4_000, 8_000]);
        let long = DepartureSchedule::new(&pattern(1e6, 1_000, ArrivalProcess::Constant), ALONE).unwrap();
        let sender = sent(&long, &[stall(20_100, 23_900)]);
        assert_eq!(sender.n_unsent, 0);
        assert!(ahead(&sender.sent, long.params.gap) == 0, "long bursts do not leave together");
        let longest = DepartureSchedule::new(&pattern(1e6, 50_000, ArrivalProcess::Constant), ALONE).unwrap();
        assert_eq!(longest.params.late_max, longest.params.gap, "a burst may take as long as its distance to the next");
    }

    #[test]
    fn a_long_burst_that_takes_a_while_to_leave_does_not_delay_the_next() {
        let mut departures = DepartureSchedule::new(&pattern(1e6, 1_000, ArrivalProcess::Constant), ALONE).unwrap();
        for n in 0..1_000 {
            // One frame every 600 ns.
            departures.advance(SchedulePoll { now: Nanos(n * 600), end: None });
        }
        assert_eq!(departures.earliest_departure(), Nanos::from_millis(1));
    }

    #[test]
    fn of_a_burst_that_has_begun_the_rest_is_given_up() {
        let mut departures = DepartureSchedule::new(&pattern(1e6, 1_000, ArrivalProcess::Constant), ALONE).unwrap();
        (0..300).for_each(|_| departures.advance(SchedulePoll { now: Nanos::ZERO, end: None }));
        let look = SchedulePoll { now: Nanos::from_micros(12_500), end: None };
        assert_eq!(departures.drop_late(look), 700 + 2_000);
        assert_eq!((departures.due(), departures.next.place_in_burst), (Nanos::from_millis(3), 0));
    }

    #[test]
    fn poisson_gaps_are_exponential_and_follow_from_the_seed() {
        let poisson = |seed| {
            let departures = DepartureSchedule::new(&pattern(1e6, 1, ArrivalProcess::Poisson { seed }), ALONE).unwrap();
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

    #[test]
    fn random_gaps_are_made_good_by_their_own_length() {
        let departures = DepartureSchedule::new(&pattern(1e6, 1, ArrivalProcess::Poisson { seed: 5 }), ALONE).unwrap();
        let sender = sent(&departures, &[stall(20_000, 21_300)]);
        assert_eq!(sender.n_unsent, 0);
        let (stalled, tolerance) = (21_300_000 << TICK_BITS, departures.params.tolerance);
        let late: Vec<&SentFrame> = sender.sent.iter().skip_while(|left| left.at < stalled).take(5_000).collect();
        for (nth, left) in late.iter().enumerate().step_by(100) {
            let scheduled = left.due - late[0].due;
            let took = left.at - late[0].at;
            assert!(took + tolerance >= catch_up_gap(scheduled), "{nth}: {scheduled} in {took}");
            // All frames are late, so each leaves as soon as it may: within one poll interval, plus one tick for each frame.
            assert!(took <= catch_up_gap(scheduled) + (5_000 << TICK_BITS) + 5_000, "{nth}: {scheduled} in {took}");
        }
    }

    fn stepped(rate: f64, burst: u32, at: Nanos, then: f64) -> DepartureSchedule {
        let step = Some(RateStep { at, rate: PerSec::new(then).unwrap() });
        DepartureSchedule::new(
            &DeparturePattern { rate_step: step, ..pattern(rate, burst, ArrivalProcess::Constant) },
            ALONE,
        )
        .unwrap()
    }

    #[test]
    fn a_rate_changes_with_the_first_departure_that_is_due_at_the_step_or_after_it() {
        let step = Nanos::from_micros(3);
        assert_eq!(times(stepped(1e6, 1, step, 0.5e6), 7), [0, 1_000, 2_000, 3_000, 5_000, 7_000, 9_000]);
        assert_eq!(times(stepped(1e6, 1, Nanos(2_500), 0.5e6), 6), [0, 1_000, 2_000, 3_000, 5_000, 7_000]);
        assert_eq!(times(stepped(1e6, 2, step, 0.5e6), 8), [0, 0, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000]);
        let mut departures = stepped(1e6, 1, step, 0.5e6);
        let look = SchedulePoll { now: Nanos::from_micros(9), end: None };
        assert_eq!(departures.n_ready(look, 64), 3, "what leaves together is of one rate");
        (0..3).for_each(|_| departures.advance(look));
        assert!(departures.is_after_step());
        assert_eq!(departures.n_ready(look, 64), 4);
    }

    #[test]
    fn a_stall_across_a_step_is_made_good_at_each_rate() {
        let departures = stepped(1e6, 1, Nanos::from_millis(21), 0.1e6);
        let sender = sent(&departures, &[stall(20_000, 22_000)]);
        assert_eq!(sender.n_unsent, 0);
        let is_after = |left: &&SentFrame| departures.params.is_after_rate_change(left.due);
        let after: Vec<SentFrame> = sender.sent.iter().filter(is_after).copied().collect();
        let before: Vec<SentFrame> = sender.sent.iter().filter(|left| !is_after(left)).copied().collect();
        assert!(ahead(&before, departures.params.gap) <= departures.params.tolerance);
        assert!(ahead(&after, departures.params.rate_change.unwrap().gap) <= departures.params.tolerance);
        // 1000 frames at 8/7 of the first rate take 875 µs, less the frames that leave together.
        assert!((22_840_000..22_880_000).contains(&(after[0].at >> TICK_BITS)), "{}", after[0].at >> TICK_BITS);
    }

    #[test]
    fn what_is_too_late_is_the_same_at_once_and_one_by_one_across_a_step() {
        let at = Nanos::from_millis(11);
        for (then, until) in
            [(0.5e6, 11_500), (0.5e6, 25_000), (0.5e6, 10_900), (3e6, 21_500), (3e6, 21_001), (50.0, 60_000)]
        {
            let (mut at_once, mut one_by_one) = (stepped(1e6, 1, at, then), stepped(1e6, 1, at, then));
            let look = SchedulePoll { now: Nanos::from_micros(until), end: None };
            let given_up = at_once.drop_late(look);
            let mut n = 0;
            while look.ticks().saturating_sub(one_by_one.next.due) > one_by_one.params.late_max {
                let gap = one_by_one.params.gap(&one_by_one.next);
                one_by_one.next.due += gap;
                n += 1;
            }
            assert_eq!((given_up, at_once.due()), (n, one_by_one.due()), "{then} at {until} µs");
            assert!(n > 0);
        }
    }

    #[test]
    fn workers_share_a_rate_and_take_turns() {
        let of_worker = |idx| {
            let departures =
                DepartureSchedule::new(&pattern(1e6, 1, ArrivalProcess::Constant), WorkShare { idx, of: 3 });
            times(departures.unwrap(), 4)
        };
        let mut all: Vec<u64> = (0..3).flat_map(of_worker).collect();
        all.sort_unstable();
        assert_eq!(all, (0..12).map(|n| n * 1_000).collect::<Vec<_>>());
    }

    #[test]
    fn workers_that_stall_together_make_it_good_together() {
        let mut all = Vec::new();
        for idx in 0..3 {
            let departures =
                DepartureSchedule::new(&pattern(3e6, 1, ArrivalProcess::Constant), WorkShare { idx, of: 3 }).unwrap();
            let sender = sent(&departures, &[stall(20_000, 21_300)]);
            assert_eq!(sender.n_unsent, 0);
            assert!(ahead(&sender.sent, departures.params.gap) <= departures.params.tolerance);
            all.extend(sender.sent);
        }
        let at_once = all.iter().filter(|left| left.at == 21_300_000 << TICK_BITS).count();
        assert_eq!(at_once, 3 * 37);
    }

    #[test]
    fn what_a_stall_at_the_end_has_left_over_leaves_behind_the_end_at_the_same_pace() {
        let end = Nanos::from_millis(100);
        let departures = constant(1e6);
        let mut sender = VirtualSender::new(departures.clone(), end);
        let done = sender.run(&[stall(98_000, 101_000)]);
        assert_eq!((sender.n_unsent, sender.n_intended()), (0, n_due(departures.clone(), end)));
        assert!(sender.sent.iter().all(|left| left.due >> TICK_BITS <= end.0), "what is due later is no part of it");
        assert!(ahead(&sender.sent, departures.params.gap) <= departures.params.tolerance);
        // 2000 frames at 8/7 of the rate take 1.75 ms.
        assert!((102_600_000..102_800_000).contains(&done.0), "{done}");
        let mut sender = VirtualSender::new(departures.clone(), end);
        let done = sender.run(&[stall(98_000, 200_000)]);
        assert_eq!((sender.n_unsent, sender.n_intended()), (2_005, n_due(departures, end)), "all was too late");
        assert!(done <= Nanos::from_micros(200_010), "{done}");
    }

    #[test]
    fn nobody_waits_long_for_the_last_frames_of_a_slow_schedule() {
        let mut departures =
            DepartureSchedule::new(&pattern(1_000.0, 20_000, ArrivalProcess::Constant), ALONE).unwrap();
        (0..5).for_each(|_| departures.advance(SchedulePoll { now: Nanos::ZERO, end: None }));
        let end = Some(Nanos::from_millis(500));
        assert_eq!(departures.drop_late(SchedulePoll { now: Nanos::from_millis(1_000), end }), 0);
        assert_eq!(departures.drop_late(SchedulePoll { now: Nanos::from_millis(1_001), end }), 19_995);
        assert_eq!(departures.due(), SECOND * 20);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn whatever_holds_a_sender_up_all_that_was_due_has_left_or_was_given_up((pattern, (looks, end)) in (patterns(), looks())) {
            let departures = DepartureSchedule::new(&pattern, ALONE).unwrap();
            let mut sender = VirtualSender::new(departures.clone(), end);
            for look in &looks {
                sender.poll(*look);
            }
            let mut now = looks[looks.len() - 1];
            while !sender.is_over(now) {
                now = next_look(&sender, now);
                sender.poll(now);
            }
            prop_assert_eq!(sender.n_intended(), n_due(departures.clone(), end));
            prop_assert!(now <= end.max(looks[looks.len() - 1]) + SECOND + Nanos::from_millis(1), "over at {}", now);
            let DepartureParams { late_max, tolerance, gap, random, rate_change, .. } = departures.params;
            for SentFrame { at, due } in &sender.sent {
                prop_assert!(at >> TICK_BITS >= due >> TICK_BITS && at.saturating_sub(*due) <= late_max, "{} at {}", due, at);
            }
            if random.is_none() && rate_change.is_none() {
                prop_assert!(ahead(&sender.sent, gap) <= tolerance);
            }
        }
    }
}
