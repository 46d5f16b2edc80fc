//! One JSON value per line: an event per round and per test, then the whole document.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use fathom_model::{Intervention, Limit, Run, StepSummary, Summary, TestRun, Trial, search::SearchTrial, units::Nanos};
use serde::Serialize;

use crate::Format;

/// Writes the events of a run. The last line is the document of `json` without line breaks.
#[derive(Debug, Clone, Copy)]
pub struct Ndjson;

/// A finished part of a run, as one line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum RunEvent<'a> {
    /// One round of one test.
    Trial {
        test: &'a str,
        /// The number of the round, from 0.
        round: u32,
        /// True if every side ran to its end.
        complete: bool,
        /// True if every side became steady before its measurement.
        steady: bool,
        /// The latest start minus the earliest.
        start_skew_ns: Nanos,
        /// The number of errors on all sides together.
        n_errors: u64,
        /// The totals of every side, by host and counter.
        totals: TrialTotals<'a>,
    },
    /// One trial of an intervention, after all rounds.
    Intervention {
        test: &'a str,
        /// The id of the finding that is tested.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<&'a str>,
        option: &'a str,
        /// The value of the option in the changed trials.
        to: &'a str,
        /// True if this trial has the changed value.
        changed: bool,
        /// The place of the trial in its intervention, from 0.
        place: u32,
        /// True if every side ran to its end.
        complete: bool,
        /// The totals of every side, by host and counter.
        totals: TrialTotals<'a>,
    },
    /// One trial of a search, after its event as a trial.
    Step {
        test: &'a str,
        /// The requested rate.
        offered: f64,
        /// The result of the trial.
        #[serde(flatten)]
        trial: &'a SearchTrial,
    },
    /// One step or transaction of the script of a test.
    #[serde(rename = "users-step")]
    UsersStep {
        test: &'a str,
        /// The results of the step.
        #[serde(flatten)]
        step: &'a StepSummary,
    },
    /// One test with its values.
    Test {
        test: &'a str,
        layer: &'static str,
        /// The values of the test.
        summaries: &'a [Summary],
        /// The limits that the values are compared with.
        limits: &'a [Limit],
        /// The findings about the test.
        findings: &'a [String],
        /// The reason why there is no value.
        unavailable: Option<&'a str>,
    },
}

/// The totals of a trial's records, grouped by host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrialTotals<'a>(&'a Trial);

impl Serialize for TrialTotals<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by_host: BTreeMap<&String, &BTreeMap<String, u64>> =
            self.0.records.iter().map(|(host, record)| (host, &record.totals)).collect();
        by_host.serialize(serializer)
    }
}

impl<'a> RunEvent<'a> {
    /// Creates the event for the end of a round, which can be written before the run is over.
    #[must_use]
    pub fn trial(test: &'a str, trial: &'a Trial) -> Self {
        Self::Trial {
            test,
            round: trial.round,
            complete: trial.records.values().all(|record| record.complete),
            steady: trial.records.values().all(|record| record.steady),
            start_skew_ns: trial.start_skew_ns,
            n_errors: trial.records.values().flat_map(|record| record.errors.values()).sum(),
            totals: TrialTotals(trial),
        }
    }

    /// Creates the event for a trial of an intervention, with or without the change.
    #[must_use]
    pub fn intervention(test: &'a str, tried: &'a Intervention, trial: &'a Trial, is_changed: bool) -> Self {
        Self::Intervention {
            test,
            cause: tried.cause.as_deref(),
            option: &tried.option,
            to: &tried.to,
            changed: is_changed,
            place: trial.round,
            complete: trial.records.values().all(|record| record.complete),
            totals: TrialTotals(trial),
        }
    }

    /// Creates the event for a trial of a search.
    #[must_use]
    pub const fn step(test: &'a str, offered: f64, trial: &'a SearchTrial) -> Self {
        Self::Step { test, offered, trial }
    }

    /// Creates the event for the end of a test.
    #[must_use]
    pub fn test(test: &'a TestRun) -> Self {
        Self::Test {
            test: &test.name,
            layer: test.layer.name(),
            summaries: &test.summaries,
            limits: &test.limits,
            findings: &test.findings,
            unavailable: test.unavailable.as_deref(),
        }
    }

    /// Writes the event and a line end in one call.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        out.write_all(&line)
    }
}

impl Format for Ndjson {
    fn name(&self) -> &'static str {
        "ndjson"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        for test in &run.tests {
            for trial in &test.trials {
                RunEvent::trial(&test.name, trial).write(out)?;
            }
            for tried in &test.interventions {
                let unchanged = tried.unchanged.iter().map(|trial| (trial, false));
                let mut trials: Vec<_> = unchanged.chain(tried.changed.iter().map(|trial| (trial, true))).collect();
                trials.sort_by_key(|(trial, _)| trial.round);
                for (trial, is_changed) in trials {
                    RunEvent::intervention(&test.name, tried, trial, is_changed).write(out)?;
                }
            }
            let points = test.curve.iter().flat_map(|curve| &curve.points);
            let mut steps: Vec<_> =
                points.flat_map(|point| point.trials.iter().map(|trial| (point.offered, trial))).collect();
            steps.sort_by_key(|(_, trial)| trial.n);
            for (offered, trial) in steps {
                RunEvent::step(&test.name, offered, trial).write(out)?;
            }
            for step in test.users.iter().flat_map(|users| &users.steps) {
                RunEvent::UsersStep { test: &test.name, step }.write(out)?;
            }
            RunEvent::test(test).write(out)?;
        }
        let mut out = io::BufWriter::new(out);
        serde_json::to_writer(&mut out, run)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}
