//! The due times of the messages of one flow.

use std::collections::VecDeque;

use fathom_engine::pace::{ArrivalProcess, Arrivals, ConstantRate, Pace, Profile};
use fathom_model::units::{Nanos, PerSec, approximate, rounded};

use super::TrafficPattern;

/// The number of groups drawn in advance: as many messages as the largest batch of a system call.
const AHEAD: usize = 1024;
/// The rate of bursts without a given length: low enough that a sleep costs little, as in iperf3.
const TICK_PER_SEC: f64 = 1e3;
/// The distance between the seeds of two flows (2⁶⁴ divided by the golden ratio), so that no two are correlated.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One of several flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowIndex {
    /// Its number, from 0.
    pub idx: usize,
    /// The number of flows.
    pub of: usize,
}

/// The due times of the messages of one flow, in order; taken messages are past.
#[derive(Debug, Clone)]
pub struct Schedule {
    groups: MessageGroups,
    n_taken: u64,
}

/// Messages that are due at the same time, group after group.
#[derive(Debug, Clone)]
enum MessageGroups {
    /// Equal groups at equal intervals, the first one after a delay.
    Even { pace: ConstantRate, of: u64, after: Nanos },
    /// Random groups; those at the front of the queue are not taken yet.
    Random { source: GroupSource, ahead: VecDeque<(Nanos, u64)> },
}

/// The source of random groups.
#[derive(Debug, Clone)]
enum GroupSource {
    Poisson(Arrivals),
    Frames(Box<VideoFrames>),
}

/// Frames of video: at equal intervals, log-normal in size, split into messages.
#[derive(Debug, Clone)]
struct VideoFrames {
    pace: ConstantRate,
    n_begun: u64,
    /// Messages per frame on average.
    mean: f64,
    /// The standard deviation of the logarithm of a frame's size.
    sigma: f64,
    /// The exact size of all frames so far in messages, and the number of messages due for them.
    n_wanted: f64,
    n_due: u64,
    random: fastrand::Rng,
}

impl Iterator for VideoFrames {
    type Item = (Nanos, u64);

    fn next(&mut self) -> Option<(Nanos, u64)> {
        let at = self.pace.at(self.n_begun);
        self.n_begun += 1;
        // The Box-Muller transform; the mean of exp(σz − σ²/2) is 1.
        let (u, v) = (1.0 - self.random.f64(), self.random.f64());
        let z = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        self.n_wanted += self.mean * (self.sigma * z - self.sigma * self.sigma / 2.0).exp();
        let n = rounded(self.n_wanted.floor()).saturating_sub(self.n_due);
        self.n_due += n;
        Some((at, n))
    }
}

impl Iterator for GroupSource {
    type Item = (Nanos, u64);

    fn next(&mut self) -> Option<(Nanos, u64)> {
        match self {
            Self::Poisson(arrivals) => arrivals.next().map(|at| (at, 1)),
            Self::Frames(frames) => frames.next(),
        }
    }
}

impl Schedule {
    /// Creates the schedule of one flow at its own rate of messages; `None` for a rate of zero.
    ///
    /// The constant traffic of several flows is offset so that their sum is constant, too.
    #[must_use]
    pub fn new(traffic: TrafficPattern, per_flow: PerSec, seed: u64, share: FlowIndex) -> Option<Self> {
        let idx = u64::try_from(share.idx).unwrap_or(0);
        let seed = seed.wrapping_add(SEED_STEP.wrapping_mul(idx + 1));
        let drawn = |source| MessageGroups::Random { source, ahead: VecDeque::with_capacity(AHEAD) };
        let even = |of: u64| {
            let pace = ConstantRate::new(PerSec::new(per_flow.get() / approximate(of))?)?;
            let n_flows = u64::try_from(share.of.max(1)).unwrap_or(1);
            Some(MessageGroups::Even { pace, of, after: Nanos(pace.at(1).0.saturating_mul(idx) / n_flows) })
        };
        let groups = match traffic {
            TrafficPattern::Constant => even(1)?,
            TrafficPattern::Bursts(Some(of)) => even(of)?,
            TrafficPattern::Bursts(None) => even(rounded((per_flow.get() / TICK_PER_SEC).round()).max(1))?,
            TrafficPattern::Poisson => {
                let all = fathom_engine::pace::WorkShare { idx: 0, of: 1 };
                drawn(GroupSource::Poisson(Arrivals::new(
                    Profile::steady(per_flow)?,
                    ArrivalProcess::Poisson { seed },
                    all,
                )))
            }
            TrafficPattern::Frames { per_sec, spread } => {
                let _ = ConstantRate::new(per_flow)?;
                drawn(GroupSource::Frames(Box::new(VideoFrames {
                    pace: ConstantRate::new(per_sec)?,
                    n_begun: 0,
                    mean: per_flow.get() / per_sec.get(),
                    sigma: (1.0 + spread * spread).ln().sqrt(),
                    n_wanted: 0.0,
                    n_due: 0,
                    random: fastrand::Rng::with_seed(seed),
                })))
            }
        };
        Some(Self { groups, n_taken: 0 })
    }

    /// The number of messages that are due at `elapsed` since the start and not yet taken, at most `most`.
    pub fn due(&mut self, elapsed: Nanos, most: u64) -> u64 {
        match &mut self.groups {
            MessageGroups::Even { pace, of, after } => {
                let n = if elapsed < *after { 0 } else { pace.due(elapsed - *after).saturating_mul(*of) };
                n.saturating_sub(self.n_taken).min(most)
            }
            MessageGroups::Random { source, ahead } => {
                let mut n = 0_u64;
                for index in 0..AHEAD {
                    let Some(&(at, of)) = front(source, ahead, index) else { break };
                    if at > elapsed || n >= most {
                        break;
                    }
                    n = n.saturating_add(of);
                }
                n.min(most)
            }
        }
    }

    /// The intended start of the first message that is not taken yet.
    #[must_use]
    pub fn next_at(&mut self) -> Nanos {
        match &mut self.groups {
            MessageGroups::Even { pace, of, after } => pace.at(self.n_taken / *of) + *after,
            MessageGroups::Random { source, ahead } => front(source, ahead, 0).map_or(Nanos::MAX, |(at, _)| *at),
        }
    }

    /// Counts messages as sent.
    pub fn advance(&mut self, n: u64) {
        self.n_taken += n;
        let MessageGroups::Random { ahead, .. } = &mut self.groups else { return };
        let mut left = n;
        while let Some((_, of)) = ahead.front_mut() {
            let now = left.min(*of);
            *of -= now;
            left -= now;
            if *of > 0 {
                return;
            }
            ahead.pop_front();
        }
    }

    /// The total number of messages due at `elapsed`.
    #[must_use]
    pub fn total_due(mut self, elapsed: Nanos) -> u64 {
        let n_waiting = match self.groups {
            MessageGroups::Even { .. } => self.due(elapsed, u64::MAX),
            MessageGroups::Random { source, ahead } => {
                let waiting = ahead.into_iter().chain(source).take_while(|(at, _)| *at <= elapsed);
                waiting.map(|(_, of)| of).sum()
            }
        };
        self.n_taken + n_waiting
    }
}

/// The group at an index of the queue, drawn if necessary; empty groups are skipped.
fn front<'a>(
    source: &mut GroupSource,
    ahead: &'a mut VecDeque<(Nanos, u64)>,
    index: usize,
) -> Option<&'a (Nanos, u64)> {
    if index >= ahead.len() {
        ahead.push_back(source.find(|(_, of)| *of > 0)?);
    }
    ahead.get(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);
    const ALONE: FlowIndex = FlowIndex { idx: 0, of: 1 };

    fn schedule(text: &str, rate: f64) -> Schedule {
        Schedule::new(text.parse().unwrap(), PerSec::new(rate).unwrap(), 7, ALONE).unwrap()
    }

    /// The times at which a sender that is never late would send within a second.
    fn times(mut schedule: Schedule) -> Vec<Nanos> {
        let mut times = Vec::new();
        loop {
            let at = schedule.next_at();
            if at >= SECOND {
                return times;
            }
            let n = schedule.due(at, 10);
            assert!(n > 0, "what is due next is due at its time");
            schedule.advance(n);
            times.extend((0..n).map(|_| at));
        }
    }

    #[test]
    fn a_second_holds_what_the_rate_says_in_every_pattern() {
        for (text, tolerance) in [
            ("constant", 1),
            ("bursts", 50),
            ("bursts:32", 32),
            ("frames:60", 900),
            ("poisson", 4 * 224),
            ("frames:100:50%", 10_000),
        ] {
            let n = times(schedule(text, 50_000.0)).len();
            assert!(n.abs_diff(50_000) <= tolerance, "{text}: {n}");
        }
    }

    #[test]
    fn bursts_are_back_to_back_and_evenly_apart() {
        let times = times(schedule("bursts:4", 4_000.0));
        assert!(times.chunks(4).all(|burst| burst.iter().all(|at| *at == burst[0])));
        let starts: Vec<Nanos> = times.chunks(4).map(|burst| burst[0]).collect();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == Nanos::from_millis(1)));
        assert_eq!(schedule("bursts", 44_642.0).due(Nanos::ZERO, 1000), 45, "what is due each millisecond");
        assert_eq!(schedule("bursts", 10.0).due(Nanos::ZERO, 1000), 1, "below a thousand per second each alone");
    }

    #[test]
    fn frames_come_at_their_rate_and_differ_as_much_as_asked() {
        let even = times(schedule("frames:50", 5_000.0));
        assert!(even.chunks(100).all(|frame| frame.iter().all(|at| *at == frame[0])), "100 messages per frame");
        let mut frames = std::collections::BTreeMap::new();
        let mut long = schedule("frames:50:40%", 5_000.0);
        for _ in 0..2_000_u64 {
            let at = long.next_at();
            let n = long.due(at, u64::MAX);
            frames.insert(at, n);
            long.advance(n);
        }
        let sizes: Vec<f64> = frames.values().map(|n| approximate(*n)).collect();
        let n = approximate(2_000);
        let mean = sizes.iter().sum::<f64>() / n;
        let deviation = (sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / n).sqrt();
        assert!((mean - 100.0).abs() < 4.0 && (deviation / mean - 0.4).abs() < 0.05, "{mean} ± {deviation}");
    }

    #[test]
    fn what_was_not_sent_in_time_stays_due_with_its_intended_time() {
        for text in ["constant", "poisson", "frames:100"] {
            let mut late = schedule(text, 10_000.0);
            let first = late.next_at();
            let n = late.due(SECOND, 64);
            assert_eq!((n, late.next_at()), (64, first), "{text}");
            late.advance(10);
            assert!(late.next_at() >= first && late.next_at() < Nanos::from_millis(10), "{text}");
            assert_eq!(late.due(SECOND, 5), 5);
            let due = late.clone().total_due(SECOND);
            assert!(due.abs_diff(10_000) <= 400, "{text}: {due}");
            let rest = times(late).len() + 10;
            assert!(due.abs_diff(u64::try_from(rest).unwrap()) <= 100, "{text}: {due} and {rest}");
        }
    }

    #[test]
    fn constant_flows_together_are_constant() {
        let rate = PerSec::new(1000.0).unwrap();
        let of = 4;
        let all = (0..of)
            .flat_map(|idx| times(Schedule::new(TrafficPattern::Constant, rate, 1, FlowIndex { idx, of }).unwrap()));
        let mut all: Vec<Nanos> = all.collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] == Nanos::from_micros(250)));
    }

    #[test]
    fn flows_at_random_do_not_follow_each_other() {
        let rate = PerSec::new(1000.0).unwrap();
        let [one, other] =
            [0, 1].map(|idx| times(Schedule::new(TrafficPattern::Poisson, rate, 1, FlowIndex { idx, of: 2 }).unwrap()));
        assert_ne!(one[..20], other[..20]);
    }

    #[test]
    fn nothing_is_ever_due_at_rate_zero() {
        for text in ["constant", "bursts", "poisson", "frames:50"] {
            assert!(Schedule::new(text.parse().unwrap(), PerSec::default(), 1, ALONE).is_none(), "{text}");
        }
    }
}
