//! The sequence of intended start times for one of several workers.

use fathom_model::units::{Nanos, approximate};

use super::Profile;

/// How events are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalProcess {
    /// At equal intervals.
    Constant,
    /// At random and independently of each other, like requests from independent users.
    Poisson {
        /// The seed of the random numbers.
        seed: u64,
    },
}

/// One worker's share of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkShare {
    /// The worker's number, from 0.
    pub idx: usize,
    /// The number of workers.
    pub of: usize,
}

/// The distance between the seeds of two workers (2⁶⁴ divided by the golden ratio), so that no two seeds are close to each other.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The times since the start at which one worker's events are due, in order.
///
/// The events of all workers together form the requested process. Constant arrivals are dealt out in turn. Each worker draws Poisson
/// arrivals on its own at its share of the rate, because independent Poisson processes add up to one. The same arguments give the same
/// times, and a clone continues where the original stands.
#[derive(Debug, Clone)]
pub struct Arrivals {
    profile: Profile,
    share: WorkShare,
    /// The random numbers of a Poisson process.
    random: Option<fastrand::Rng>,
    /// The expected number of events of all workers before the next event of this worker.
    position: f64,
    /// The number of this worker's events that have been taken.
    n_taken: u64,
    /// The profile segment of the last event.
    part: usize,
}

impl Arrivals {
    /// Creates one worker's share of a process that follows a profile.
    #[must_use]
    pub fn new(profile: Profile, process: ArrivalProcess, share: WorkShare) -> Self {
        let random = match process {
            ArrivalProcess::Constant => None,
            ArrivalProcess::Poisson { seed } => {
                Some(fastrand::Rng::with_seed(seed.wrapping_add(SEED_STEP.wrapping_mul(share.idx as u64 + 1))))
            }
        };
        let mut arrivals = Self { profile, share, random, position: 0.0, n_taken: 0, part: 0 };
        arrivals.position = arrivals.position_of(0);
        arrivals
    }

    /// The position of event number `n`, which follows the current one.
    fn position_of(&mut self, n: u64) -> f64 {
        let of = self.share.of as u64;
        match &mut self.random {
            None => approximate(n * of + self.share.idx as u64),
            // The gaps of a Poisson process are exponential. In one worker's share they are longer by the number of workers.
            Some(random) => self.position - (1.0 - random.f64()).ln() * approximate(of),
        }
    }
}

impl Iterator for Arrivals {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let at = self.profile.time_of(self.position, &mut self.part)?;
        self.n_taken += 1;
        self.position = self.position_of(self.n_taken);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::units::PerSec;

    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn steady(rate: f64) -> Profile {
        Profile::steady(PerSec::new(rate).unwrap()).unwrap()
    }

    /// All workers' events within `span`, in order.
    fn all(profile: &Profile, process: ArrivalProcess, of: usize, span: Nanos) -> Vec<Nanos> {
        let one = |idx| Arrivals::new(profile.clone(), process, WorkShare { idx, of }).take_while(|at| *at < span);
        let mut times: Vec<Nanos> = (0..of).flat_map(one).collect();
        times.sort_unstable();
        times
    }

    #[test]
    fn constant_arrivals_of_all_workers_are_evenly_spaced() {
        for of in [1, 2, 3, 7] {
            let times = all(&steady(10_000.0), ArrivalProcess::Constant, of, SECOND);
            assert_eq!(times.len(), 10_000);
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] == Nanos::from_micros(100)), "{of} workers");
        }
    }

    #[test]
    fn poisson_arrivals_have_exponential_gaps_however_many_workers_there_are() {
        for of in [1, 2, 5] {
            let times = all(&steady(100_000.0), ArrivalProcess::Poisson { seed: 7 }, of, SECOND);
            // The count is Poisson distributed too: its standard deviation is the square root of its mean, 316.
            assert!(times.len().abs_diff(100_000) < 4 * 316, "{of} workers: {}", times.len());
            let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
            let n = approximate(gaps.len() as u64);
            let mean = gaps.iter().sum::<f64>() / n;
            let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n).sqrt();
            assert!((deviation / mean - 1.0).abs() < 0.02, "{of} workers: cv {}", deviation / mean);
            let beyond = approximate(gaps.iter().filter(|gap| **gap > 2.0 * mean).count() as u64) / n;
            assert!((beyond - (-2.0_f64).exp()).abs() < 0.005, "{of} workers: {beyond}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals_and_another_seed_others() {
        let times = |seed| all(&steady(1000.0), ArrivalProcess::Poisson { seed }, 2, SECOND);
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }

    #[test]
    fn a_clone_goes_on_from_where_the_original_stands() {
        for process in [ArrivalProcess::Constant, ArrivalProcess::Poisson { seed: 3 }] {
            let mut arrivals = Arrivals::new(steady(50.0), process, WorkShare { idx: 1, of: 2 });
            arrivals.nth(20);
            assert!(arrivals.clone().take(50).eq(arrivals.take(50)));
        }
    }

    #[test]
    fn a_profile_is_followed_by_both_processes_and_ends() {
        let profile: Profile = "1k:1s,0-4k:1s".parse().unwrap();
        assert_eq!(all(&profile, ArrivalProcess::Constant, 3, Nanos::MAX).len(), 3000);
        let times = all(&profile, ArrivalProcess::Poisson { seed: 1 }, 3, Nanos::MAX);
        assert!(times.len().abs_diff(3000) < 4 * 55, "{}", times.len());
        let early = times.iter().filter(|time| **time < SECOND).count();
        assert!(early.abs_diff(1000) < 4 * 32, "{early}");
    }

    #[test]
    fn a_day_at_a_million_per_second_does_not_drift() {
        let mut arrivals = Arrivals::new(steady(1e6), ArrivalProcess::Constant, WorkShare { idx: 0, of: 1 });
        let n = 86_400 * 1_000_000_u64;
        arrivals.position = arrivals.position_of(n);
        assert!(arrivals.next().unwrap().0.abs_diff(86_400 * 1_000_000_000) < 100);
    }
}
