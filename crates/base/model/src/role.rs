//! One side of one test on one host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{settings::Settings, units::Nanos};

/// The side of a test that a host plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Connects, asks or sends. It decides when the test is over.
    Initiator,
    /// Is prepared first, answers or receives, and continues until it learns that the initiator has finished.
    Responder,
}

/// Values that the responder sends to the initiator before the start: `address` = `198.18.0.2:40123`, `mac` = `02:…`.
pub type Endpoints = BTreeMap<String, String>;

/// The lengths of the phases of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Phases {
    /// The maximum length of the warm-up; it ends earlier once the rate is steady.
    pub warmup_max_ns: Nanos,
    /// Whether the warm-up always takes the whole time, even if the rate is steady: tests that run together also measure together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_warmup_whole: bool,
    /// The length of the measured phase.
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

/// Information that both sides of a trial have about each other before anything is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerAddresses {
    /// The other side's addresses on the path under test; empty if any peer may connect.
    pub with: Vec<std::net::IpAddr>,
    /// The random token that identifies the other side, used for this trial only.
    pub token: u64,
    /// The networks that the user allows, for names that are looked up again during the trial; absent to allow all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Vec<String>>,
    /// The addresses of the names that the options send to, as they were checked before the run. They are not looked up again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resolved: BTreeMap<String, Vec<std::net::IpAddr>>,
}

/// The task of one host in one trial, as sent to its agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Role {
    /// The name of the test in its plan.
    pub test: String,
    /// The name of the kind of test.
    pub kind: String,
    /// The side that this host plays.
    pub side: Side,
    /// The options of the kind, complete with defaults.
    pub settings: Settings,
    /// The lengths of the phases of the trial.
    pub phases: Phases,
    /// This host's own address on the path under test, to listen on or to send from.
    pub address: Option<std::net::IpAddr>,
    /// This host's interface on the path under test.
    pub interface: Option<String>,
    /// The values sent by the responder; empty for the responder itself.
    #[serde(default)]
    pub peer: Endpoints,
    /// The information that distinguishes the other side from strangers.
    #[serde(default)]
    pub meeting: PeerAddresses,
    /// The cores that worker threads may be pinned to; empty for all cores available to the process.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// The seed of all random numbers in this trial.
    pub seed: u64,
}

/// The monotonic clock of the host at the other end, relative to this host's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerClock {
    /// Their clock minus ours, in nanoseconds.
    pub ahead_ns: i64,
    /// The maximum error of the offset at the time of the comparison; absent if both hosts read the same clock.
    pub error_ns: Option<Nanos>,
    /// The time of the comparison, on our clock.
    pub compared_ns: Nanos,
}

impl PeerClock {
    /// The maximum drift between two clocks: 15 ppm each (PHI of RFC 5905, section 7.1).
    const DRIFT: f64 = 30e-6;

    /// Converts a time on their clock to our clock.
    #[must_use]
    pub const fn ours(self, theirs: Nanos) -> Nanos {
        Nanos(theirs.0.saturating_add_signed(self.ahead_ns.saturating_neg()))
    }

    /// The maximum error of a converted time until `now`; it grows with the age of the comparison.
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
