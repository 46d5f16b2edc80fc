//! The results of the benchmarking methods of RFC 2544 and its successors at one frame size.

use serde::{Deserialize, Serialize};

use crate::{metric::Metric, units::Nanos};

/// The reference for the rates of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The maximum rate of the link at this frame size.
    LineRate,
    /// The highest allowed rate.
    Asked,
    /// The tool's own maximum rate, for a device without a line rate.
    OwnMaximum,
}

impl Reference {
    /// The reference in words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LineRate => "line rate",
            Self::Asked => "the rate that was asked for",
            Self::OwnMaximum => "fathom's own maximum",
        }
    }
}

/// What the trials of a benchmark count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrafficUnit {
    /// Ethernet frames; their size includes the checksum.
    #[default]
    Frames,
    /// UDP datagrams; their size is that of the payload.
    Datagrams,
}

impl TrafficUnit {
    /// The plural for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Datagrams => "datagrams",
        }
    }
}

/// The rate at which the tool itself sends into a lossless sink, measured before the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OwnMaximum {
    /// Frames per second that it sends on schedule.
    pub rate: f64,
    /// Frames per second when sending as fast as possible.
    pub flat_out: f64,
    /// The share of the sent frames that the sink missed at that rate.
    pub loss_ratio: f64,
    /// The share of the due frames that were not sent at that rate.
    pub unsent_ratio: f64,
    /// The maximum delay of a frame after its due time at that rate.
    #[serde(default)]
    pub lag_ns: Nanos,
}

/// One value in the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BenchmarkResult {
    /// The metric; its source names its definition.
    pub metric: Metric,
    /// The value; absent with a note that gives the reason.
    pub value: Option<f64>,
    /// The lower end of its interval.
    pub low: Option<f64>,
    /// The upper end of its interval.
    pub high: Option<f64>,
    /// Whether the result is irregular by RFC 9971 or invalid by RFC 9004.
    #[serde(default)]
    pub is_irregular: bool,
    /// A note to print next to the value.
    pub note: Option<String>,
}

/// The loss at one rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LossPoint {
    /// The intended frames per second.
    pub rate: f64,
    /// The number of trials.
    pub n_trials: u64,
    /// The lost share of the offered frames: the median of the trials.
    pub loss_ratio: f64,
}

/// One trial, in chronological order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BenchmarkTrial {
    /// The purpose of the trial.
    pub what: String,
    /// The intended frames per second.
    pub rate: f64,
    /// The time for which frames were to be sent.
    pub duration_ns: Nanos,
    /// The number of due frames.
    pub n_intended: u64,
    /// The number of frames that the device accepted.
    pub n_offered: u64,
    /// The number of frames that arrived.
    pub n_received: u64,
}

/// All results of the methods at one frame size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Benchmark {
    /// What is sent.
    #[serde(default)]
    pub unit: TrafficUnit,
    /// The length of a frame including its checksum, or of a datagram's payload.
    pub size_bytes: u64,
    /// The frames per second that count as 100 %.
    pub max_rate: f64,
    /// The meaning of 100 %.
    pub reference: Reference,
    /// The maximum rate of the link at this size, if the link is a wire.
    pub line_rate: Option<f64>,
    /// The tool's own maximum rate, if it could be measured.
    pub own: Option<OwnMaximum>,
    /// The values, in the order of the methods.
    pub results: Vec<BenchmarkResult>,
    /// The frame loss curve of RFC 2544, from the highest rate down.
    pub loss: Vec<LossPoint>,
    /// The loss at the rates of the search, in ascending order.
    pub searched: Vec<LossPoint>,
    /// Remarks on all results: the durations of the RFC that were shortened.
    pub remarks: Vec<String>,
    /// The reason why some methods did not finish.
    pub cut: Option<String>,
    /// Every trial.
    pub trials: Vec<BenchmarkTrial>,
}
