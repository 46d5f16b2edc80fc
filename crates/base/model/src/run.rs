//! Everything about one run: the document `fathom.run/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    benchmark::Benchmark,
    bottleneck::FlowSummary,
    environment::Environment,
    finding::{Finding, Verdict, VerdictState},
    metric::Layer,
    plan::Plan,
    record::{HostRecord, Record},
    search::LoadCurve,
    settings::Settings,
    steps::UsersSummary,
    summary::{Conservation, Limit, Summary},
    units::Nanos,
};

/// The version of the document.
pub const SCHEMA: &str = "fathom.run/1";

/// A host of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Host {
    /// Its address on the path under test.
    pub address: Option<String>,
    /// Its interface on the path under test.
    pub interface: Option<String>,
    /// Its further interfaces there: a device between two wires has one on each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_interfaces: Vec<String>,
    /// How it was reached: `namespace a of lab pair`, `tls 10.0.0.2:7700`.
    pub reached: String,
    /// How its monotonic clock differs from the controller's, in nanoseconds: theirs minus ours.
    pub clock_offset_ns: i64,
    /// The most that the offset can be wrong.
    pub clock_error_ns: Nanos,
    /// What it is.
    pub environment: Environment,
    /// What was different after the run; empty when nothing was.
    #[serde(default)]
    pub changed: Environment,
    /// What could not be observed or done there, in sentences.
    #[serde(default)]
    pub losses: Vec<String>,
}

/// One round of one test.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Trial {
    /// The round, from 0.
    pub round: u32,
    /// What each side recorded, by host; a host that plays both sides appears as `host` and `host/responder`.
    pub records: BTreeMap<String, Record>,
    /// What the hosts' counters showed meanwhile.
    pub hosts: BTreeMap<String, HostRecord>,
    /// The latest start minus the earliest, as far as the clocks can be compared.
    pub start_skew_ns: Nanos,
}

/// One test with all its trials and what they amount to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TestRun {
    /// The name in the plan.
    pub name: String,
    /// A line for the table: `stream, 8 flows`.
    pub title: String,
    /// The layer it belongs to.
    pub layer: Layer,
    /// The kind.
    pub kind: String,
    /// The host that began.
    pub from: String,
    /// The host that answered.
    pub to: Option<String>,
    /// The kind's options, complete.
    pub options: Settings,
    /// The promises by metric, as they were written.
    #[serde(default)]
    pub expect: BTreeMap<String, String>,
    /// The rounds; of a search, the trials at the highest rate that keeps its objective.
    pub trials: Vec<Trial>,
    /// What a search measured at all its rates; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<LoadCurve>,
    /// What benchmarking methods found; absent for a test without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Benchmark>,
    /// What scripted users did, step by step; absent for a test without a script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UsersSummary>,
    /// What held each connection of a stream back, in the last round that sampled any; empty for other tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowSummary>,
    /// The values, the most important first.
    #[serde(default)]
    pub summaries: Vec<Summary>,
    /// What the values are compared with, the nearest first.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// Where everything that was sent went, where that is counted.
    #[serde(default)]
    pub conservation: Option<Conservation>,
    /// The ids of the findings that explain it.
    #[serde(default)]
    pub findings: Vec<String>,
    /// Why there is no value, in words: `needs CAP_NET_RAW`.
    #[serde(default)]
    pub unavailable: Option<String>,
}

impl TestRun {
    /// The name that stands alone: `tcp stream, 8 flows`, or `frames, 64 B` where the title names the layer.
    #[must_use]
    pub fn named(&self) -> String {
        let layer = self.layer.name();
        if self.title.starts_with(layer) { self.title.clone() } else { format!("{layer} {}", self.title) }
    }
}

impl Run {
    /// The state in words: `MEASURED, 1 of 6 rows INVALID`.
    #[must_use]
    pub fn state_words(&self) -> String {
        let word = self.verdict.state.word();
        match self.verdict.invalid.len() {
            0 => word.to_owned(),
            _ if self.verdict.state == VerdictState::Invalid => word.to_owned(),
            n => format!("{word}, {n} of {} rows {}", self.tests.len(), VerdictState::Invalid.word()),
        }
    }

    /// What a finding says, with the name of its test where there are others.
    #[must_use]
    pub fn told(&self, finding: &Finding) -> String {
        let only = self.tests.iter().find(|test| finding.tests == [test.name.as_str()]);
        match only.filter(|_| self.tests.len() > 1) {
            Some(test) => format!("{}: {}", test.named(), finding.title),
            None => finding.title.clone(),
        }
    }
}

/// Whether a run came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Completeness {
    /// All rounds of all tests were run.
    Complete,
    /// Something was lost; what was measured is kept.
    Incomplete {
        /// What was lost, in a sentence.
        reason: String,
    },
}

/// One run, from what was asked to what it means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// The run's name, also of its folder: `2026-11-21-0923-a1f3`.
    pub id: String,
    /// The program that made it: `fathom 0.1.0`.
    pub tool: String,
    /// The command that repeats it.
    pub command: String,
    /// When it began: RFC 3339, with the time zone.
    pub started: String,
    /// How long it took.
    pub took_ns: Nanos,
    /// What was asked.
    pub plan: Plan,
    /// The hosts by name.
    pub hosts: BTreeMap<String, Host>,
    /// The tests, top layer first.
    pub tests: Vec<TestRun>,
    /// What was found, the most important first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Whether promises were kept.
    pub verdict: Verdict,
    /// Whether it came to its end.
    pub completeness: Completeness,
}
