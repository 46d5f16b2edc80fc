//! What the records of a test amount to.

use serde::{Deserialize, Serialize};

use crate::metric::{Metric, Unit};

/// An interval that contains the true value with a given probability, if the trials are like those to come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Confidence {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability, such as 0.95.
    pub level: f64,
    /// The number of independent trials it comes from.
    pub n_trials: usize,
}

/// One value of a test with its uncertainty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Summary {
    /// What was measured.
    pub metric: Metric,
    /// The value; absent when it could not be measured, with the reason in `note`.
    pub value: Option<f64>,
    /// The interval around it; absent with fewer than two trials.
    pub confidence: Option<Confidence>,
    /// The value of each trial, in order.
    pub trials: Vec<f64>,
    /// For a quantile: how many samples lie above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_above: Option<u64>,
    /// How many samples it comes from, where samples were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_samples: Option<u64>,
    /// What must be said beside the value, such as that the samples are too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An end of an interval that is this many times the value leaves open even its order of magnitude.
const VAGUE: f64 = 10.0;

impl Summary {
    /// Whether there could be a value: one that nothing was counted for because nothing could be is not missing.
    #[must_use]
    pub fn applies(&self) -> bool {
        self.value.is_some()
            || self.metric.inapplicable.is_none()
            || self.note.as_deref() != self.metric.inapplicable.as_deref()
    }

    /// Whether the trials differ too much for so few of them to say where the value lies.
    ///
    /// Two trials that differ by half have a Student-t interval over several orders of magnitude: correct, and useless as
    /// figures. A share is bounded by nature, so only the interval from nothing to everything says nothing.
    #[must_use]
    pub fn is_vague(&self) -> bool {
        let Some((value, interval)) = self.value.zip(self.confidence) else { return false };
        match self.metric.unit {
            Unit::Ratio => interval.low <= 0.0 && interval.high >= 1.0,
            _ => interval.high > VAGUE * value,
        }
    }
}

/// Where a limit comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The rate of the link, where the device has a real one.
    LineRate,
    /// What was promised with `--expect`.
    Promise,
    /// What was asked of the generator with `--rate`.
    Asked,
    /// What the tool itself reaches on this machine (`fathom calibrate`).
    OwnCeiling,
    /// What the layer below reached on the same path.
    LayerBelow,
}

/// Something a value is compared with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Limit {
    /// Where it comes from.
    pub kind: LimitKind,
    /// The name of the metric it limits.
    pub metric: String,
    /// The limit in the metric's unit.
    pub value: f64,
    /// A word for the table: `line 23.5 Gbit/s`, `tcp rr 610 k/s`.
    pub text: String,
    /// The value as a share of it.
    pub used: Option<f64>,
}

/// A place where frames or datagrams were dropped, by the counter that saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Drops {
    /// The place in words: `receiver's socket buffer`.
    pub place: String,
    /// The host and the counter.
    pub counter: String,
    /// How many.
    pub n_dropped: u64,
}

/// Where everything that was sent went: sent = received + drops + unexplained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Conservation {
    /// What is counted: `frames`, `datagrams`.
    pub what: String,
    /// What the schedule asked for; absent when it asked for as much as possible.
    pub n_intended: Option<u64>,
    /// What the sender's kernel accepted.
    pub n_sent: u64,
    /// What the receiver counted, each once.
    pub n_received: u64,
    /// The drops, by place.
    pub drops: Vec<Drops>,
    /// What no counter explains; negative when more arrived than was sent.
    pub n_unexplained: i64,
}
