//! The complete data of one run: the document `fathom.run/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    anatomy::Anatomy,
    benchmark::Benchmark,
    bottleneck::FlowSummary,
    comparison::{Comparison, Sweep},
    environment::Environment,
    finding::{Finding, NoCause, Verdict, VerdictState},
    intervention::Intervention,
    link::{Link, Sharing},
    metric::Layer,
    plan::Plan,
    record::Trial,
    replay::ReplaySummary,
    search::LoadCurve,
    settings::Settings,
    steps::UsersSummary,
    summary::{Conservation, Limit, PacketQueueShare, Summary},
    targets::TargetsSummary,
    time_division::TimeDivision,
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
    /// Its other interfaces on that path: a device between two wires has one on each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_interfaces: Vec<String>,
    /// Where it is on each path of the plan, by the name of the path; empty in a plan without paths.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub on_paths: BTreeMap<String, PathPlace>,
    /// How it was reached: `namespace a of lab pair`, `tls 10.0.0.2:7700`.
    pub reached: String,
    /// The offset of its monotonic clock from the controller's, in nanoseconds: theirs minus ours.
    pub clock_offset_ns: i64,
    /// The maximum error of the offset.
    pub clock_error_ns: Nanos,
    /// The properties of the host.
    pub environment: Environment,
    /// The properties that changed during the run; empty if none did.
    #[serde(default)]
    pub changed: Environment,
    /// The observations and actions that were not possible there, as sentences.
    #[serde(default, rename = "losses")]
    pub unavailable: Vec<String>,
}

/// Where a host is on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PathPlace {
    /// Its address on the path.
    pub address: String,
    /// The interface with that address; absent if the host has no such interface, as behind address translation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// The trials of a test at a rate that is beyond its limit: of a search, one that breaks the objective, at most a fifth above the limit if one was tried there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BeyondLimit {
    /// The rate, in the unit of the search; in frames or datagrams per second for a benchmark.
    pub rate: f64,
    /// The kind's options with this rate.
    pub options: Settings,
    /// Trials at this rate that missed the objective.
    pub trials: Vec<Trial>,
}

/// One test with all its trials and their results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TestRun {
    /// The name in the plan.
    pub name: String,
    /// A title for the table, such as `stream, 8 flows`.
    pub title: String,
    /// The layer it belongs to.
    pub layer: Layer,
    /// The kind.
    pub kind: String,
    /// The initiating host, or a group of them.
    pub from: String,
    /// The responding host, or a group of them.
    pub to: Option<String>,
    /// The host of the run that a test without a responder sends to, where a server runs that is not fathom's: its counters are read like those
    /// of an end. Absent if that is no host of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The path that it takes; absent in a plan without paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The options that select the kind in the command of its layer, such as `--test rr`; absent for a kind without a place there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_by: Option<String>,
    /// The pairs of hosts between which it runs, with their values; empty for a test of one pair.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// How the work divides among hosts and flows; absent for a test of one pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// The kind's options, complete with defaults.
    pub options: Settings,
    /// The promises by metric, as written by the user.
    #[serde(default)]
    pub expect: BTreeMap<String, String>,
    /// The trials of all rounds; for a search, the trials at the highest rate that keeps its objective.
    pub trials: Vec<Trial>,
    /// The trials beyond the limit of a search or a benchmark, which show its cause; absent for other tests, and if there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<BeyondLimit>,
    /// The results of a search at all its rates; absent for a test at one rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<LoadCurve>,
    /// The results of benchmarking methods; absent for a test without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmark: Option<Benchmark>,
    /// The activity of scripted users, step by step; absent for a test without a script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<UsersSummary>,
    /// The bottleneck of each connection of a stream, in the last round that sampled any; empty for other tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowSummary>,
    /// The interventions in the order in which they were tried; empty unless the plan asks for proofs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interventions: Vec<Intervention>,
    /// Which targets behind an address answered, and what events did to them; absent for other tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<TargetsSummary>,
    /// What became of the requests of a recording; absent for other tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySummary>,
    /// Where the time of a unit of work went, if the kind samples that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anatomy: Option<Anatomy>,
    /// How the time of a stream divides, at both ends; empty for other tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<TimeDivision>,
    /// The metric that a reader asks for with these options; absent if that is the first of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// The values, most important first for most options of the kind.
    #[serde(default)]
    pub summaries: Vec<Summary>,
    /// The limits for comparison with the values, nearest first.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// The account of everything that was sent, if that is counted.
    #[serde(default)]
    pub conservation: Option<Conservation>,
    /// What each queue of the device had, if it has several; by their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<PacketQueueShare>,
    /// The ids of the findings that explain it.
    #[serde(default)]
    pub findings: Vec<String>,
    /// What was ruled out if it stays below its limits and nothing was found that holds it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_cause: Option<NoCause>,
    /// The reason why there is no value, in words, such as `needs CAP_NET_RAW`.
    #[serde(default)]
    pub unavailable: Option<String>,
}

impl TestRun {
    /// Returns the host that answers: the responding one, or that of a server that is not fathom's.
    #[must_use]
    pub fn answering(&self) -> Option<&str> {
        self.to.as_deref().or(self.server.as_deref())
    }

    /// A test of this layer and kind that has not run: without hosts, options, trials and results. Its name and title are those of the kind.
    #[must_use]
    pub fn new(layer: Layer, kind: &str) -> Self {
        Self {
            name: kind.to_owned(),
            title: kind.to_owned(),
            layer,
            kind: kind.to_owned(),
            from: String::new(),
            to: None,
            server: None,
            path: None,
            selected_by: None,
            links: Vec::new(),
            sharing: None,
            options: Settings::default(),
            expect: BTreeMap::new(),
            trials: Vec::new(),
            beyond: None,
            curve: None,
            benchmark: None,
            users: None,
            flows: Vec::new(),
            interventions: Vec::new(),
            targets: None,
            replay: None,
            anatomy: None,
            time: Vec::new(),
            headline: None,
            summaries: Vec::new(),
            limits: Vec::new(),
            conservation: None,
            queues: Vec::new(),
            findings: Vec::new(),
            no_cause: None,
            unavailable: None,
        }
    }

    /// Returns the value that a reader sees first: that of the headline, or the first one.
    #[must_use]
    pub fn first_value(&self) -> Option<&Summary> {
        let is_headline = |summary: &&Summary| self.headline.as_deref() == Some(summary.metric.name.as_ref());
        self.summaries.iter().find(is_headline).or(self.summaries.first())
    }

    /// Whether XDP programs take the place of the sockets at both ends, as the option `xdp` says: then the kernel's TCP carries nothing of it,
    /// and no layer is above or below it.
    #[must_use]
    pub fn is_without_sockets(&self) -> bool {
        self.options.text("xdp").is_some()
    }

    /// The full name of the test: `tcp stream, 8 flows`, or `frames, 64 B` if the title already names the layer.
    #[must_use]
    pub fn full_name(&self) -> String {
        let layer = self.layer.name();
        if self.title.starts_with(layer) { self.title.clone() } else { format!("{layer} {}", self.title) }
    }
}

impl Run {
    /// Returns the finding because of which the numbers of a test say nothing about its promises.
    #[must_use]
    pub fn spoiler_of(&self, test: &TestRun) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.spoils_promises() && finding.tests.contains(&test.name))
    }

    /// A complete run of this plan without hosts, tests and findings.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            id: String::new(),
            tool: String::new(),
            command: String::new(),
            started: String::new(),
            took_ns: Nanos::ZERO,
            plan,
            hosts: BTreeMap::new(),
            tests: Vec::new(),
            comparisons: Vec::new(),
            sweeps: Vec::new(),
            findings: Vec::new(),
            verdict: Verdict::default(),
            completeness: Completeness::Complete,
        }
    }

    /// The state in words, such as `MEASURED, 1 of 6 rows INVALID`.
    #[must_use]
    pub fn state_words(&self) -> String {
        let word = self.verdict.state.word();
        match self.verdict.invalid.len() {
            0 => word.to_owned(),
            _ if self.verdict.state == VerdictState::Invalid => word.to_owned(),
            n => format!("{word}, {n} of {} rows {}", self.tests.len(), VerdictState::Invalid.word()),
        }
    }

    /// The text of a finding, prefixed with the name of its test if the run has other tests.
    #[must_use]
    pub fn finding_text(&self, finding: &Finding) -> String {
        let only = self.tests.iter().find(|test| finding.tests == [test.name.as_str()]);
        match only.filter(|_| self.tests.len() > 1) {
            Some(test) => format!("{}: {}", test.full_name(), finding.title),
            None => finding.title.clone(),
        }
    }
}

/// Whether a run finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum Completeness {
    /// All rounds of all tests were run.
    Complete,
    /// Part of the run failed; the measured data is kept.
    Incomplete {
        /// The part that failed, in one sentence.
        reason: String,
    },
}

/// One run, from the request to the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// The run's name, which is also the name of its folder, such as `2026-11-21-0923-a1f35c`.
    pub id: String,
    /// The program that made it, such as `fathom 0.1.0`.
    pub tool: String,
    /// The command that repeats it.
    pub command: String,
    /// The start time: RFC 3339, with the time zone.
    pub started: String,
    /// The duration of the run.
    pub took_ns: Nanos,
    /// The plan of the run.
    pub plan: Plan,
    /// The hosts by name.
    pub hosts: BTreeMap<String, Host>,
    /// The tests, top layer first.
    pub tests: Vec<TestRun>,
    /// The comparisons of paths, in the order of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// The values of the compared paths over a swept parameter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweeps: Vec<Sweep>,
    /// The findings, most important first.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Whether the promises were kept.
    pub verdict: Verdict,
    /// Whether the run finished.
    pub completeness: Completeness,
}
