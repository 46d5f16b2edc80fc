//! How users come: so many over a time, or by a schedule.

use fathom_engine::pace::{Process, Profile};
use fathom_model::units::Nanos;

/// How users come, all workers together.
#[derive(Debug, Clone)]
pub enum Coming {
    /// So many, spread evenly over a time from the start on, each in a seat of its own.
    Population {
        /// At least 1.
        n: u64,
        /// Zero for all at once.
        over: Nanos,
    },
    /// By a schedule; one who finds no free seat waits for it.
    Arrivals {
        /// Users per second, over time.
        profile: Profile,
        /// How they are spread.
        process: Process,
        /// The most who are there at once, at least 1.
        n_seats: u64,
    },
}

impl Coming {
    /// The most users who are there at once.
    #[must_use]
    pub fn n_seats(&self) -> u64 {
        match self {
            Self::Population { n, .. } => *n,
            Self::Arrivals { n_seats, .. } => *n_seats,
        }
    }
}
