//! Due times of events, as functions of the time since the start and of a seed.
//!
//! A [`Pace`] gives the time of any event by its number. [`Arrivals`] gives times in sequence, because random ones need that, and follows a
//! [`Profile`]. Nothing here reads a clock.

mod arrivals;
mod constant;
mod pacer;
mod profile;
mod queue;
mod waking;

pub use arrivals::{ArrivalProcess, Arrivals, WorkShare};
pub use constant::ConstantRate;
use fathom_model::units::Nanos;
pub(crate) use pacer::Pacer;
pub use pacer::Pacing;
pub use profile::{Profile, ProfileError};
pub(crate) use queue::StartQueue;
pub use queue::{ConnectionAvailability, DueStart, LateCause};
use waking::WakeLatency;

/// The lag at which a start counts as late: our own pacing stays below it in 99 of 100 starts.
pub const LATE: Nanos = Nanos::from_micros(50);

/// A schedule that gives the time of any event by its number.
pub trait Pace: Send {
    /// Returns how many events are due at `elapsed` since the start.
    fn due(&self, elapsed: Nanos) -> u64;

    /// Returns the intended start of event number `n` (from 0), as the time since the start.
    fn at(&self, n: u64) -> Nanos;

    /// Returns how long to wait before the next event after `n_sent` events were sent; zero if it is due or late.
    fn wait(&self, elapsed: Nanos, n_sent: u64) -> Nanos {
        self.at(n_sent).since(elapsed)
    }
}
