//! Detects the end of a warm-up; independent of the length of an interval and of the meaning of the rate.

use crate::moments::{mean, n_of};

/// The minimum number of intervals to judge by: two averages of three, 300 ms at intervals of 50 ms.
const INTERVALS_MIN: usize = 6;
/// The number of intervals to remember: older ones do not show whether the rate is steady now.
const INTERVALS_MAX: usize = 8;
/// Averages that agree this closely count as steady, even if the series has little noise.
const TOLERANCE: f64 = 0.02;
/// The allowed distance of the averages in standard errors of their difference: five of six stationary series pass at once.
const NOISE_FACTOR: f64 = 1.5;

/// An online detector of the end of a warm-up, fed one rate per interval.
///
/// The rate is steady if the average of the newer half of the last six to eight intervals agrees with the average of the older half, within
/// 2 % or within the noise of the series itself. The idea comes from the responsiveness test (draft-ietf-ippm-responsiveness: the last four
/// moving averages within 5 %), with two differences. First, its averages overlap, so a ramp of 4 % per interval seems steady to it; the
/// averages here share no interval. Second, its intervals last a second. In 50 ms a busy machine always varies by more than 5 %, so the
/// tolerance here follows the noise, which is estimated from successive differences (von Neumann 1941); a ramp hardly increases it.
#[derive(Debug, Clone, Default)]
pub struct Steadiness {
    recent: Vec<f64>,
}

impl Steadiness {
    /// Adds the rate of the next interval, in any unit, and returns whether the rate is steady now.
    pub fn push(&mut self, rate: f64) -> bool {
        self.recent.push(rate);
        if self.recent.len() > INTERVALS_MAX {
            self.recent.remove(0);
        }
        self.recent.len() >= INTERVALS_MIN && agree(&self.recent)
    }
}

/// Whether the halves of a series have the same mean, given its noise. A rate of zero is not steady.
fn agree(recent: &[f64]) -> bool {
    let half = recent.len() / 2;
    let (older, newer) = recent.split_at(recent.len() - half);
    let (Some(before), Some(now)) = (mean(older), mean(newer)) else { return false };
    let steps: Vec<f64> = recent.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).collect();
    let variance = mean(&steps).unwrap_or(0.0) / 2.0;
    let error = (variance / n_of(older) + variance / n_of(newer)).sqrt();
    now > 0.0 && (now - before).abs() <= (TOLERANCE * now).max(NOISE_FACTOR * error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use fathom_model::units::approximate;

    /// The number of intervals until a series is found steady.
    fn steady_after(rates: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut steadiness = Steadiness::default();
        rates.into_iter().position(|rate| steadiness.push(rate)).map(|before| before + 1)
    }

    /// A rate that climbs to 1000 in `n` intervals and stays there, with noise.
    fn climb(n: u64, cv: f64, seed: u64) -> Vec<f64> {
        let mut noise = Noise::seeded(seed);
        let ideal = (1..=2 * n).map(|i| 1000.0 * (approximate(i) / approximate(n)).min(1.0));
        ideal.map(|rate| rate * (1.0 + cv * noise.normal())).collect()
    }

    #[test]
    fn a_quiet_series_is_steady_as_soon_as_there_is_enough_of_it() {
        assert_eq!(steady_after([1000.0; 20]), Some(INTERVALS_MIN));
    }

    #[test]
    fn a_noisy_stationary_series_is_found_steady_soon() {
        for cv in [0.1, 0.2] {
            let mut after: Vec<usize> =
                (1..=200).map(|seed| steady_after(Noise::seeded(seed).around(cv, 60)).unwrap_or(99)).collect();
            after.sort_unstable();
            assert!(after[100] <= 7, "half of the series need {} intervals at cv {cv}", after[100]);
            assert!(after[190] <= 14, "one in twenty needs {} intervals at cv {cv}", after[190]);
        }
    }

    #[test]
    fn a_ramp_is_not_steady_while_it_climbs() {
        let after = steady_after(climb(40, 0.0, 1)).unwrap();
        assert!((41..=48).contains(&after), "steady after {after} intervals");
    }

    #[test]
    fn a_noisy_ramp_is_not_steady_in_its_first_half() {
        let n_early = (1..=200).filter(|seed| steady_after(climb(20, 0.1, *seed)).is_some_and(|n| n <= 10)).count();
        assert!(n_early <= 20, "{n_early} of 200 ramps seemed steady early");
    }

    #[test]
    fn a_first_burst_is_waited_out() {
        let rates = [4000.0, 1500.0, 1000.0].into_iter().chain([1000.0; 20]);
        assert!(steady_after(rates).unwrap() >= 7);
    }

    #[test]
    fn nothing_is_never_steady() {
        assert_eq!(steady_after([0.0; 100]), None);
    }
}
