//! One side of one test on one host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{settings::Settings, units::Nanos};

/// Which end of a test a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Begins: connects, asks, sends. It decides when the test is over.
    Initiator,
    /// Is prepared first, answers or receives, and goes on until it is told that the initiator has finished.
    Responder,
}

/// What the responder tells the initiator before the start: `address` = `198.18.0.2:40123`, `mac` = `02:…`.
pub type Endpoints = BTreeMap<String, String>;

/// How long the parts of a trial last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Phases {
    /// The longest warm-up; it ends earlier when the rate has become steady.
    pub warmup_max_ns: Nanos,
    /// Whether the warm-up takes all of that time, however steady the rate is: tests that are made together measure together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_warmup_whole: bool,
    /// What is measured after the warm-up.
    pub measure_ns: Nanos,
    /// The length of one interval of the timeline.
    pub interval_ns: Nanos,
}

impl Phases {
    /// The longest time from the start to the end of the measurement.
    #[must_use]
    pub fn longest(self) -> Nanos {
        self.warmup_max_ns + self.measure_ns
    }
}

/// What both sides of a trial know of each other before anything is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerAddresses {
    /// The other side's addresses on the path under test; none where anybody may come.
    pub with: Vec<std::net::IpAddr>,
    /// By which the other side is known: random, and of this trial alone.
    pub token: u64,
    /// The networks that the user allows, where names may be looked up again during the trial; all, without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Vec<String>>,
    /// The addresses of the names that the options send to, as they were checked before the run. They are not looked up again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resolved: BTreeMap<String, Vec<std::net::IpAddr>>,
}

/// What one host does in one trial, as it is sent to its agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Role {
    /// The name of the test in its plan.
    pub test: String,
    /// The name of the kind of test.
    pub kind: String,
    /// Which end this host is.
    pub side: Side,
    /// The options of the kind, complete: defaults are filled in.
    pub settings: Settings,
    /// How long the trial lasts.
    pub phases: Phases,
    /// This host's own address on the path under test, to listen on or to send from.
    pub address: Option<std::net::IpAddr>,
    /// This host's interface on the path under test.
    pub interface: Option<String>,
    /// What the responder has told; empty for the responder itself.
    #[serde(default)]
    pub peer: Endpoints,
    /// How the other side is told from strangers.
    #[serde(default)]
    pub meeting: PeerAddresses,
    /// The cores that worker threads may be pinned to; empty for all that the process may use.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// The seed of everything that is random in this trial.
    pub seed: u64,
}

/// The monotonic clock of the host at the other end, as this host's shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerClock {
    /// Theirs minus ours, in nanoseconds.
    pub ahead_ns: i64,
    /// How wrong that could be when the clocks were compared; nothing when both hosts read one clock.
    pub error_ns: Option<Nanos>,
    /// When they were compared, on ours.
    pub compared_ns: Nanos,
}

impl PeerClock {
    /// How fast two clocks may drift apart: 15 ppm each (PHI of RFC 5905, section 7.1).
    const DRIFT: f64 = 30e-6;

    /// What our clock shows when theirs shows this.
    #[must_use]
    pub const fn ours(self, theirs: Nanos) -> Nanos {
        Nanos(theirs.0.saturating_add_signed(self.ahead_ns.saturating_neg()))
    }

    /// The most that a time which was carried over can be wrong until `now`; it grows with the age of the comparison.
    #[must_use]
    pub fn error_until(self, now: Nanos) -> Nanos {
        let drift = Nanos::from_secs_f64((now - self.compared_ns).as_secs_f64() * Self::DRIFT);
        self.error_ns.map_or(Nanos::ZERO, |error| error + drift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_other_clock_is_carried_over_with_an_error_that_grows() {
        let clock =
            PeerClock { ahead_ns: -3_000, error_ns: Some(Nanos::from_micros(40)), compared_ns: Nanos::from_secs(100) };
        assert_eq!(clock.ours(Nanos(7_000)), Nanos(10_000));
        assert_eq!(clock.error_until(Nanos::from_secs(100)), Nanos::from_micros(40));
        assert_eq!(clock.error_until(Nanos::from_secs(110)), Nanos::from_micros(40 + 300));
        let shared = PeerClock { error_ns: None, ..clock };
        assert_eq!(shared.error_until(Nanos::from_secs(110)), Nanos::ZERO, "one clock does not drift from itself");
    }
}
