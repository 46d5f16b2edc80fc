//! Turns the records of a run into summaries and the summaries into findings. Every function is pure.
//!
//! This crate knows no engine, no kind of test, no output format and no I/O. The metrics of a kind define how its values follow
//! from its records. Counters are identified by the names in `fathom_model::names`.
//!
//! Data flows in one direction, and no file depends on a later one: window → summaries → conservation → flows → limits →
//! findings → tests without a cause → verdict. Interventions are judged before the findings, which they prove or refute; the next one
//! follows from an analyzed run.

// Input: the measured window, the cores, the path, and the promises as written.
mod context;
mod cores;
mod pairs;
mod path;
mod path_check;
pub mod promise;
mod window;

// Values with their uncertainty.
pub mod benchmark;
mod beyond;
mod comparison;
pub mod curve;
mod precision;
mod sharing;
mod summaries;
mod sweep;
mod targets;

// Where all packets and all the time went, and what the users did.
mod anatomy;
mod conservation;
mod judged_promise;
pub mod steps;
mod time_division;

// One test with all of the above, and the limits it is compared with.
mod evidence;
mod flat;
mod flows;
mod gap;
mod groups;
mod growth;
mod limits;
mod queues;
mod reception;
mod repeat_command;
mod replay;
mod resent;
mod same_way;
mod segment_loss;
mod tested;

// Findings, what proves or refutes them, and the verdict.
mod change;
mod closed_load;
mod effect;
mod findings;
mod no_cause;
mod proof;
mod unreached;
mod verdict;
mod watched;

#[cfg(test)]
mod next_lines;
#[cfg(test)]
mod run_builder;

use std::collections::BTreeMap;

use fathom_model::{Derivation, Metric, Run, TestRun, run::Host};

use context::{lead_test, paired_tests};

pub use change::{CHANGEABLE_OPTIONS, Change};
pub use context::AnalysisContext;
pub use effect::effect;
pub use evidence::TestEvidence;
pub use findings::{FINDING_RULES, FindingRule};
pub use pairs::{ClockOffsets, join_pairs, merge_records};
pub use path_check::{ends_in_silence, has_carried_nothing, path_fault};
pub use precision::is_narrow;
pub use proof::next_intervention;
pub use summaries::{is_main_rate, value_in};
pub use sweep::number as sweep_number;
pub use unreached::{Unreached, unreached};
pub use watched::WatchedHost;

/// Fills in every part of a run that follows from its records: values, limits, conservation, findings and the verdict.
///
/// Replaces earlier results, so a run that was read from a file can be analyzed again. For a kind that the context does not
/// know, the metrics in the run are used.
pub fn analyze(run: &mut Run, context: &AnalysisContext) {
    analyze_tests(run, context);
    run.comparisons = comparison::comparisons(run);
    run.sweeps = sweep::sweeps(run);
    run.findings = findings::findings(run, context, beyond::causes(run, context));
    for test in &mut run.tests {
        let about = run.findings.iter().filter(|finding| finding.tests.contains(&test.name));
        test.findings = about.map(|finding| finding.id.clone()).collect();
        test.findings.dedup();
    }
    for idx in 0..run.tests.len() {
        run.tests[idx].no_cause = no_cause::no_cause(&TestEvidence::new(run, &run.tests[idx], context));
    }
    run.verdict = verdict::verdict(run);
}

/// Fills in the values of all tests and their limits.
fn analyze_tests(run: &mut Run, context: &AnalysisContext) {
    for idx in 0..run.tests.len() {
        if let Some(curve) = &mut run.tests[idx].curve {
            curve::derive(curve);
        }
        let test = &run.tests[idx];
        let metrics = metrics_of(run, test, context);
        let summaries = summaries::summaries(test, &run.hosts, &metrics);
        let together: Vec<&TestRun> = std::iter::once(test).chain(paired_tests(run, test)).collect();
        let conservation = if lead_test(run, test).is_none() {
            let device = conservation::DeviceBetween {
                host: path_check::device_of(run, test),
                prints_counters: path_check::is_device_counted(run, test),
            };
            conservation::conservation(&together, &run.hosts, device)
        } else {
            None
        };
        (run.tests[idx].summaries, run.tests[idx].conservation) = (summaries, conservation);
        judge_interventions(&mut run.tests[idx], &run.hosts);
        if let Some(anatomy) = anatomy::anatomy(&run.tests[idx]) {
            run.tests[idx].anatomy = Some(anatomy);
        }
        // Thousands of units would be most of a document.
        let test = &mut run.tests[idx];
        let of_interventions =
            test.interventions.iter_mut().flat_map(|tried| tried.unchanged.iter_mut().chain(&mut tried.changed));
        let beyond = test.beyond.iter_mut().flat_map(|beyond| &mut beyond.trials);
        for trial in test.trials.iter_mut().chain(of_interventions).chain(beyond) {
            trial.records.values_mut().for_each(|record| record.sampled = Vec::new());
        }
        run.tests[idx].queues = queues::queues(run, &run.tests[idx]);
        run.tests[idx].users = steps::users(&run.tests[idx], &run.hosts);
        run.tests[idx].targets = targets::summary(&run.tests[idx]);
        run.tests[idx].replay = replay::summary(&run.tests[idx]);
        run.tests[idx].flows = flows::flows(run, &run.tests[idx], context);
        run.tests[idx].time = time_division::time_division(&run.tests[idx]);
        sharing::fill_in_links(&mut run.tests[idx], &run.hosts);
        run.tests[idx].sharing = sharing::sharing(&run.tests[idx]);
        let tested = tested::tested_host(run, &run.tests[idx], context);
        if let Some(sharing) = &mut run.tests[idx].sharing {
            sharing.tested = tested;
        }
    }
    // The test of the layer below can be anywhere in the list, so the limits are computed after all values.
    for idx in 0..run.tests.len() {
        let growth = growth::growth(run, &run.tests[idx]);
        if let Some(sharing) = &mut run.tests[idx].sharing {
            sharing.growth = growth;
        }
        run.tests[idx].limits = limits::limits(run, &run.tests[idx], context);
    }
}

/// Returns the metrics of a test: those of its kind, of its search or benchmark, and of the device that it passes.
fn metrics_of(run: &Run, test: &TestRun, context: &AnalysisContext) -> Vec<Metric> {
    let mut metrics = match context.metrics.get(&test.kind) {
        Some(metrics) => metrics.clone(),
        None => test.summaries.iter().map(|summary| summary.metric.clone()).collect(),
    };
    if let Some(curve) = &test.curve
        && !metrics.iter().any(|metric| metric.from == Derivation::Limit)
    {
        metrics.insert(0, curve::limit_metric(curve.unit));
    }
    if let Some(benchmark) = &test.benchmark {
        metrics.retain(|metric| metric.from != Derivation::Benchmark);
        metrics.splice(0..0, benchmark.results.iter().map(|result| result.metric.clone()));
    }
    metrics.extend(comparison::device_metric(run, test, &metrics));
    metrics
}

/// Fills in the effects of the interventions of a test.
fn judge_interventions(test: &mut TestRun, hosts: &BTreeMap<String, Host>) {
    let metrics: Vec<Metric> = test.summaries.iter().map(|summary| summary.metric.clone()).collect();
    for tried in &mut test.interventions {
        let metric = metrics.iter().find(|metric| metric.name == tried.metric.as_str());
        tried.effect = metric.and_then(|metric| effect(tried, metric, hosts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_run_that_was_analysed_before_comes_out_the_same_without_knowing_its_kinds() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1100]);
        builder.udp_stream(&[(1000, 990), (1000, 1000)]);
        builder.run.tests[1].expect.insert("loss".to_owned(), "0 %".to_owned());
        let once = builder.analyzed();
        let mut again = once.clone();
        analyze(&mut again, &AnalysisContext::default());
        assert_eq!(again, once);
    }
}
