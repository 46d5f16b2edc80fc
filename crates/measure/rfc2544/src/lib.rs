//! The benchmarking methods of RFC 2544 and its successors, as state machines over a [`Tester`].
//!
//! A tester runs one trial: frames at a rate for a time, or a burst. A method decides on the trials and evaluates them. It knows
//! no device, no clock and no backend, so each method is tested in virtual time against devices with known results.

mod back_to_back;
mod forwarding;
mod latency;
mod loss;
mod recovery;
mod reset;
mod retry;
mod search;

#[cfg(test)]
mod virtual_device;

use fathom_model::units::{Nanos, approximate, ratio};

pub use back_to_back::{BackToBackOptions, BackToBackResult, back_to_back};
pub use forwarding::{ForwardingResult, forwarding};
pub use latency::{LatencyOptions, LatencyResult, latency};
pub use loss::{LossAtLoad, LossCurve, loss};
pub use recovery::{OVERLOAD, OverloadLimit, RecoveryOptions, RecoveryResult, overload, recovery};
pub use reset::{ResetResult, reset};
pub use search::{ThroughputOptions, ThroughputResult, throughput};

use retry::RetryingTester;

/// The traffic of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrialTraffic {
    /// A rate for a time.
    Stream {
        /// Frames per second.
        rate: f64,
        duration: Nanos,
    },
    /// Consecutive frames at the highest possible rate.
    Burst {
        n_frames: u64,
        /// Frames per second in the burst.
        rate: f64,
    },
    /// One rate followed by another, without a pause between them.
    Step {
        /// Frames per second before the step.
        rate: f64,
        /// The duration before the step.
        duration: Nanos,
        /// Frames per second after the step.
        then: f64,
        /// The duration after the step.
        after: Nanos,
    },
}

impl TrialTraffic {
    /// The time that sending takes.
    #[must_use]
    pub fn duration(&self) -> Nanos {
        match *self {
            Self::Stream { duration, .. } => duration,
            Self::Step { duration, after, .. } => duration + after,
            Self::Burst { n_frames, rate } => Nanos::from_secs_f64(approximate(n_frames) / rate),
        }
    }

    /// Frames per second at the start.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        match *self {
            Self::Stream { rate, .. } | Self::Burst { rate, .. } | Self::Step { rate, .. } => rate,
        }
    }
}

/// A trial that a method requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialRequest {
    pub traffic: TrialTraffic,
    /// The purpose of the trial, in a word or two for users.
    pub purpose: &'static str,
    /// The approximate remaining time of the method, including this trial.
    pub time_left: Nanos,
}

/// The latencies of the frames of one trial (RFC 8219 section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// The number of frames.
    pub n: u64,
    /// The shortest latency.
    pub min: Nanos,
    /// The typical latency, TL.
    pub median: Nanos,
    /// The worst-case latency, WCL: the 99.9th percentile.
    pub worst: Nanos,
    /// The longest latency.
    pub max: Nanos,
    /// The median and maximum inter-packet delay variation, if measured (RFC 8219 section 7.3.2).
    pub variation: Option<DelayVariation>,
}

/// The difference between the latencies of consecutive frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayVariation {
    pub median: Nanos,
    pub max: Nanos,
}

impl Latencies {
    /// The packet delay variation: the 99.9th percentile minus the minimum (RFC 8219 section 7.3.1).
    #[must_use]
    pub const fn pdv(&self) -> Nanos {
        self.worst.since(self.min)
    }
}

/// The counts of one trial.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TrialCounts {
    /// Frames that were scheduled.
    pub intended: u64,
    /// Frames that the device accepted.
    pub offered: u64,
    /// Frames that arrived, without duplicates.
    pub received: u64,
    /// Latencies, if the backend measures them.
    pub latencies: Option<Latencies>,
    /// From a rate change to the last lost frame; zero if all losses were before it.
    pub recovery: Option<Nanos>,
    /// The largest lateness of a frame.
    pub lag: Nanos,
    /// How long the trial took, including preparation and waits.
    pub took: Nanos,
}

/// The longest stall in a valid trial. To catch up with a longer one, a sender exceeds the rate by a seventh for more than 35 ms,
/// which a small buffer cannot absorb.
///
/// At 20,000 frames per second, the buffer has to absorb a hundred frames on top of those that the device forwards.
const LAG_MAX: Nanos = Nanos::from_millis(5);

impl TrialCounts {
    /// The ratio of lost to offered frames; `None` if no frame was offered.
    #[must_use]
    pub fn loss_ratio(&self) -> Option<f64> {
        ratio(self.offered.saturating_sub(self.received), self.offered)
    }

    /// Whether the trial is valid for the device: almost all frames were sent, and none too late.
    ///
    /// Catching up costs a device frames that it could have forwarded, and a pause gives it extra time. To reject trials for only
    /// one of these effects would shift every bound.
    #[must_use]
    pub(crate) fn is_valid(&self, unsent_max: f64, lag_max: Nanos) -> bool {
        self.offered > 0 && self.unsent_ratio() <= unsent_max && self.lag <= lag_max
    }

    /// The ratio of unsent to scheduled frames: the tool's own fault.
    #[must_use]
    pub fn unsent_ratio(&self) -> f64 {
        ratio(self.intended.saturating_sub(self.offered), self.intended).unwrap_or(1.0)
    }
}

/// Runs trials.
pub trait Tester {
    /// Why a trial cannot be run.
    type Error;

    /// The number of directions. The rate applies to each direction, and the counts are sums over all.
    fn n_directions(&self) -> u32 {
        1
    }

    /// Sends the requested traffic and counts the frames that arrive.
    ///
    /// # Errors
    /// An error ends the method, which keeps its results so far.
    fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, Self::Error>;
}

/// Why a method ended early.
#[derive(Debug, PartialEq, Eq)]
pub enum StopReason<E> {
    /// The tool did not send the requested rate in several trials in a row.
    RateNotSent {
        /// The requested rate in frames per second.
        rate: u64,
    },
    /// The allowed time is used up.
    OutOfTime,
    /// A trial could not be run.
    Failed(E),
}

/// A result, and why it is not complete.
#[derive(Debug, PartialEq)]
pub struct MethodResult<T, E> {
    /// The result so far.
    pub result: T,
    /// Why the method ended early; `None` if it is complete.
    pub stopped: Option<StopReason<E>>,
}
