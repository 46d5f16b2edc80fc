//! The tables of the balancer, and that of the kernel's connection tracking, in virtual time.
//!
//! A simulation draws everything from its seed, so it repeats exactly; it is as fast as the table, and does not wait.

pub mod capture;
pub mod conntrack;
pub mod fragments;
pub mod maglev;
mod size_search;

pub use size_search::{SizeSearch, TriedSize};

use fathom_model::units::{Nanos, approximate, rounded};
use fathom_statistics::splitmix;

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Draws {
    seed: u64,
    number: u64,
}

impl Draws {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, number: 0 }
    }

    /// Any number.
    pub(crate) const fn any(&mut self) -> u64 {
        self.number += 1;
        splitmix(self.seed, self.number)
    }

    /// A number below a limit that is not 0. The bias is below 2⁻³² for limits of 32 bits.
    pub(crate) const fn below(&mut self, limit: u64) -> u64 {
        let product = (self.any() as u128) * (limit as u128);
        (product >> 64) as u64
    }

    /// A number from 0 to below 1.
    pub(crate) const fn share(&mut self) -> f64 {
        approximate(self.any() >> 11) / 9_007_199_254_740_992.0
    }

    /// A time with an exponential distribution.
    pub(crate) fn exponential(&mut self, mean: Nanos) -> Nanos {
        Nanos(rounded(-approximate(mean.0) * (1.0 - self.share()).ln()))
    }

    /// Brings a list into a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let limit = u64::try_from(last + 1).unwrap_or(u64::MAX);
            list.swap(last, usize::try_from(self.below(limit)).unwrap_or(0));
        }
    }
}

/// When the next packet comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SimulatedArrivals {
    /// Gaps of 0 to twice the mean, all equally likely: the model of the simulations that nfqlb's sizes come from.
    #[default]
    Uniform,
    /// Independent arrivals: gaps with an exponential distribution.
    Poisson,
    /// So many at once, then a gap.
    Bursts(u32),
}

impl SimulatedArrivals {
    /// Returns the gap before an arrival, given its number from 0.
    pub(crate) fn gap(self, draws: &mut Draws, mean: Nanos, number: u64) -> Nanos {
        match self {
            Self::Uniform => Nanos(draws.below((mean.0 * 2).max(1))),
            Self::Poisson => draws.exponential(mean),
            Self::Bursts(n) if number.is_multiple_of(u64::from(n.max(1))) => mean * u64::from(n.max(1)),
            Self::Bursts(_) => Nanos::ZERO,
        }
    }
}
