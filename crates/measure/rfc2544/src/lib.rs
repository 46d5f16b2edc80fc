//! The benchmarking methods of RFC 2544 and what came after it, as state machines over a [`Tester`].
//!
//! A tester makes one trial: frames at a rate for a time, or a burst. A method decides which trials are made and what they amount
//! to. It knows no device, no clock and no backend, so each is tested in virtual time against devices whose answer is known.

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

/// What is to be sent in one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrialTraffic {
    /// That many frames per second for a time.
    Stream {
        /// Frames per second.
        rate: f64,
        /// For how long.
        duration: Nanos,
    },
    /// That many frames in a row, at the highest rate there is.
    Burst {
        /// How many.
        n_frames: u64,
        /// Frames per second within the burst.
        rate: f64,
    },
    /// One rate and then another, without a pause between them.
    Step {
        /// Frames per second at first.
        rate: f64,
        /// For how long.
        duration: Nanos,
        /// Frames per second from then on.
        then: f64,
        /// For how long.
        after: Nanos,
    },
}

impl TrialTraffic {
    /// How long sending takes.
    #[must_use]
    pub fn duration(&self) -> Nanos {
        match *self {
            Self::Stream { duration, .. } => duration,
            Self::Step { duration, after, .. } => duration + after,
            Self::Burst { n_frames, rate } => Nanos::from_secs_f64(approximate(n_frames) / rate),
        }
    }

    /// Frames per second, at the beginning.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        match *self {
            Self::Stream { rate, .. } | Self::Burst { rate, .. } | Self::Step { rate, .. } => rate,
        }
    }
}

/// One trial that a method asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialRequest {
    /// What is to be sent.
    pub traffic: TrialTraffic,
    /// What the trial is for, in a word or two for people.
    pub purpose: &'static str,
    /// About how long the method goes on, this trial included.
    pub time_left: Nanos,
}

/// The latencies of the frames of one trial (RFC 8219 section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// How many frames they are of.
    pub n: u64,
    /// The shortest.
    pub min: Nanos,
    /// The typical latency, TL.
    pub median: Nanos,
    /// The worst-case latency, WCL: the 99.9th percentile.
    pub worst: Nanos,
    /// The longest.
    pub max: Nanos,
    /// The median and the longest inter-packet delay variation, where it is counted (RFC 8219 section 7.3.2).
    pub variation: Option<DelayVariation>,
}

/// The difference between the latencies of neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayVariation {
    /// The typical one.
    pub median: Nanos,
    /// The longest.
    pub max: Nanos,
}

impl Latencies {
    /// The packet delay variation: the 99.9th percentile beyond the shortest (RFC 8219 section 7.3.1).
    #[must_use]
    pub const fn pdv(&self) -> Nanos {
        self.worst.since(self.min)
    }
}

/// What one trial saw.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TrialCounts {
    /// Frames that the schedule asked for.
    pub intended: u64,
    /// Frames that the device accepted.
    pub offered: u64,
    /// Frames that arrived, each counted once.
    pub received: u64,
    /// Latencies, where the backend measures them.
    pub latencies: Option<Latencies>,
    /// From a change of the rate to the last lost frame; zero when all were lost before it.
    pub recovery: Option<Nanos>,
    /// The longest time by which a frame left later than it was due.
    pub lag: Nanos,
    /// How long the trial took, with preparation and waits.
    pub took: Nanos,
}

/// What is made up for after a longer stall is a seventh above the rate for longer than 35 ms, which a small buffer does not hold.
///
/// At 20,000 frames per second it is of a hundred that come on top of what the device forwards.
const LAG_MAX: Nanos = Nanos::from_millis(5);

impl TrialCounts {
    /// What was lost of what was offered; nothing when nothing was offered.
    #[must_use]
    pub fn loss_ratio(&self) -> Option<f64> {
        ratio(self.offered.saturating_sub(self.received), self.offered)
    }

    /// Whether the trial says something of the device: all but so little was sent, and nothing too late.
    ///
    /// A late burst costs a device frames that it could have forwarded, and a pause gives it time that it should not have had: to judge
    /// only one of them would move every bound.
    #[must_use]
    pub(crate) fn is_valid(&self, unsent_max: f64, lag_max: Nanos) -> bool {
        self.offered > 0 && self.unsent_ratio() <= unsent_max && self.lag <= lag_max
    }

    /// What was not sent of what was intended: the tool's own fault.
    #[must_use]
    pub fn unsent_ratio(&self) -> f64 {
        ratio(self.intended.saturating_sub(self.offered), self.intended).unwrap_or(1.0)
    }
}

/// Makes trials.
pub trait Tester {
    /// Why no trial can be made.
    type Error;

    /// How many ways frames go at once: a rate is offered each way, and what is seen is of all together.
    fn n_directions(&self) -> u32 {
        1
    }

    /// Sends what is asked and counts what arrives.
    ///
    /// # Errors
    /// Ends the method, which keeps what it knows.
    fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, Self::Error>;
}

/// Why a method ended before it was done.
#[derive(Debug, PartialEq, Eq)]
pub enum StopReason<E> {
    /// The tool did not send what was asked in that many trials in turn.
    RateNotSent {
        /// Frames per second that it was to send.
        rate: u64,
    },
    /// The time that was allowed is used up.
    OutOfTime,
    /// A trial could not be made.
    Failed(E),
}

/// Something found, and why there is not more of it.
#[derive(Debug, PartialEq)]
pub struct MethodResult<T, E> {
    /// What is known.
    pub result: T,
    /// Why the method ended early; nothing when it is done.
    pub stopped: Option<StopReason<E>>,
}
