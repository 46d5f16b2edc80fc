//! When the next of a series is due: pure functions of the time since the start.

mod constant;

pub use constant::Constant;
use fathom_model::units::Nanos;

/// A schedule of events.
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
