//! When the next of a series is due: functions of the time since the start and of a seed.
//!
//! A [`Pace`] can be asked for any event by its number; [`Arrivals`] come one after another, as random ones must, and follow a
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
pub use pacer::{Pacer, Pacing};
pub use profile::{Profile, ProfileError};
pub use queue::{ConnectionAvailability, DueStart, LateCause, StartQueue};
pub use waking::WakeLatency;

/// A start this much later than intended is late: it is what our own pacing stays below in 99 of 100 starts.
pub const LATE: Nanos = Nanos::from_micros(50);

/// A schedule of events that are known by their numbers.
pub trait Pace: Send {
    /// How many events are due at `elapsed` since the start.
    fn due(&self, elapsed: Nanos) -> u64;

    /// The time, since the start, at which event number `n` (from 0) is due: its intended start.
    fn at(&self, n: u64) -> Nanos;

    /// How long to wait before the next event when `n_sent` have gone out; zero when it is due or late.
    fn wait(&self, elapsed: Nanos, n_sent: u64) -> Nanos {
        self.at(n_sent).since(elapsed)
    }
}
