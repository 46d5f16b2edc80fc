//! A host over a time, without a test: what a recording shows, ready to be written.

use fathom_model::{Environment, Finding, Unit, units::Nanos};

/// Everything that a report on a recording shows.
#[derive(Debug, Clone)]
pub struct HostHistory {
    /// The command that wrote this report.
    pub command: String,
    /// The program and its version.
    pub tool: String,
    /// The name of the host.
    pub host: String,
    /// Its properties.
    pub environment: Environment,
    /// The first and the last time for people, RFC 3339.
    pub from: String,
    /// The last time.
    pub to: String,
    /// The time between them.
    pub span: Nanos,
    /// The number of samples.
    pub n_samples: u64,
    /// The series in their order.
    pub charts: Vec<Chart>,
    /// Facts that are needed to read them, a sentence each.
    pub notes: Vec<String>,
    /// The findings, the most important first.
    pub findings: Vec<SeenFinding>,
}

/// Several series of the same unit.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Such as `received by interface`.
    pub title: String,
    /// How it is to be read.
    pub about: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The series.
    pub lines: Vec<ChartLine>,
}

/// A series.
#[derive(Debug, Clone)]
pub struct ChartLine {
    /// Such as `eth0`.
    pub name: String,
    /// The ends of intervals since the beginning, with the mean of each; absent if it is not known.
    pub points: Vec<(Nanos, Option<f64>)>,
    /// The mean over all known intervals.
    pub mean: f64,
    /// The highest interval.
    pub highest: f64,
    /// When that ended, since the beginning.
    pub highest_at: Nanos,
}

/// A finding, and when it was seen.
#[derive(Debug, Clone)]
pub struct SeenFinding {
    /// As it was at first.
    pub finding: Finding,
    /// The first and the last times of each stretch, for people.
    pub stretches: Vec<(String, String)>,
}
