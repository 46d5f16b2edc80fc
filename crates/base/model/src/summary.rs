//! The results computed from the records of a test.

use serde::{Deserialize, Serialize};

use crate::metric::{Metric, Unit};

/// An interval that contains the true value with a given probability, provided that future trials are like these.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Confidence {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability, such as 0.95.
    pub level: f64,
    /// The number of independent trials behind it.
    pub n_trials: usize,
}

/// One value of a test with its uncertainty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Summary {
    /// The measured metric.
    pub metric: Metric,
    /// The value; absent if it could not be measured, with the reason in `note`.
    pub value: Option<f64>,
    /// The interval around it; absent with fewer than two trials.
    pub confidence: Option<Confidence>,
    /// The value of each trial, in order.
    pub trials: Vec<f64>,
    /// For a quantile: the number of samples above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_above: Option<u64>,
    /// The number of samples behind it, if samples were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_samples: Option<u64>,
    /// A note to print next to the value, for example that there are too few samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// If the end of an interval exceeds this multiple of the value, even the order of magnitude is uncertain.
const VAGUE: f64 = 10.0;

impl Summary {
    /// Returns whether there could be a value: a value that no test of this form can count is not missing.
    #[must_use]
    pub fn applies(&self) -> bool {
        self.value.is_some()
            || self.metric.inapplicable.is_none()
            || self.note.as_deref() != self.metric.inapplicable.as_deref()
    }

    /// Returns whether the trials differ too much, for their small number, to locate the value.
    ///
    /// Two trials that differ by half have a Student-t interval over several orders of magnitude: correct, but useless as a figure. A share
    /// is bounded anyway, so it is vague only if its interval goes from 0 to 1.
    #[must_use]
    pub fn is_vague(&self) -> bool {
        let Some((value, interval)) = self.value.zip(self.confidence) else { return false };
        match self.metric.unit {
            Unit::Ratio => interval.low <= 0.0 && interval.high >= 1.0,
            _ => interval.high > VAGUE * value,
        }
    }
}

/// The source of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The rate of the link, if the device has a real one.
    LineRate,
    /// The promise given with `--expect`.
    Promise,
    /// The rate requested from the generator with `--rate`.
    Asked,
    /// The most that a path carries with the window of the test (`ideal_bps`, RFC 6349 section 3.3).
    Ideal,
    /// The tool's own maximum on this machine (`fathom calibrate`).
    OwnCeiling,
    /// The result of the layer below on the same path.
    LayerBelow,
}

/// A limit that a value is compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Limit {
    /// The source of the limit.
    pub kind: LimitKind,
    /// The name of the metric it limits.
    pub metric: String,
    /// The limit in the metric's unit.
    pub value: f64,
    /// A short text for the table: `line 23.5 Gbit/s`, `tcp rr 610 k/s`.
    pub text: String,
    /// The value as a share of the limit.
    pub used: Option<f64>,
}

/// A place where frames or datagrams were dropped, identified by the counter that recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Drops {
    /// The place in words, such as `receiver's socket buffer`.
    pub place: String,
    /// The host and the counter.
    pub counter: String,
    /// The number of drops.
    pub n_dropped: u64,
}

/// What one queue of packets for a program (NFQUEUE) of a device had in the measured time of all trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PacketQueueShare {
    /// The number of the queue.
    pub queue: String,
    /// The packets that the program got from it.
    pub n_packets: u64,
    /// The same as a part of those of all queues; absent without any packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The CPU time of the thread that decides them, as a part of a core; absent for a device that does not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_share: Option<f64>,
    /// The packets that came while it was full.
    pub n_dropped: u64,
    /// The packets that found the receive buffer of the program full.
    pub n_user_dropped: u64,
}

/// The account of everything that was sent: sent = received + drops + unexplained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conservation {
    /// The counted units: `frames`, `datagrams`.
    pub what: String,
    /// The number that the schedule asked for; absent if it asked for as many as possible.
    pub n_intended: Option<u64>,
    /// The number that the sender's kernel accepted.
    pub n_sent: u64,
    /// The number that the receiver counted, without duplicates.
    pub n_received: u64,
    /// The drops, by place.
    pub drops: Vec<Drops>,
    /// The number that no counter explains; negative if more arrived than were sent.
    pub n_unexplained: i64,
}
