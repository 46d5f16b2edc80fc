//! Records to summaries to findings: pure functions from what happened to what it means.
//!
//! It knows no engine, no kind of test, no format and no I/O: a kind's metrics say how its values follow from its records,
//! and counters are known by the names that `fathom_model::names` gives them.

pub mod benchmark;
mod conservation;
pub mod curve;
mod findings;
mod flows;
mod limits;
mod precision;
pub mod promise;
mod repeat_command;
pub mod steps;
mod summaries;
mod verdict;
mod window;

#[cfg(test)]
mod run_builder;

use std::collections::BTreeMap;

use fathom_model::{Derivation, Metric, Run, TestRun};

pub use findings::{FINDING_RULES, FindingRule, TestEvidence};
pub use precision::is_narrow;

/// What the analysis must be told because no record holds it.
#[derive(Debug, Clone, Default)]
pub struct AnalysisContext {
    /// What each kind of test measures, the most important first.
    pub metrics: BTreeMap<String, Vec<Metric>>,
    /// What the tool itself reaches on this machine in a test like this: by the test's name, then by metric.
    pub ceilings: BTreeMap<String, BTreeMap<String, f64>>,
}

/// The test that another is made together with, if it is not on its own.
fn lead_test<'a>(run: &'a Run, test: &TestRun) -> Option<&'a TestRun> {
    let planned = run.plan.tests.iter().find(|planned| planned.name == test.name)?;
    run.tests.iter().find(|other| Some(&other.name) == planned.beside.as_ref())
}

/// The tests that are made together with one.
fn paired_tests<'a>(run: &'a Run, test: &'a TestRun) -> impl Iterator<Item = &'a TestRun> {
    let of_run = |name: &str| run.tests.iter().find(|other| other.name == name);
    let planned = run.plan.tests.iter().filter(|planned| planned.beside.as_ref() == Some(&test.name));
    planned.filter_map(move |planned| of_run(&planned.name))
}

/// Fills in everything of a run that follows from its records: values, limits, conservation, findings and the verdict.
///
/// What was filled in before is replaced, so a run that was read from a file can be analysed again; of a kind that the context
/// does not know, the metrics that are in the run are taken.
pub fn analyze(run: &mut Run, context: &AnalysisContext) {
    for idx in 0..run.tests.len() {
        if let Some(curve) = &mut run.tests[idx].curve {
            curve::derive(curve);
        }
        let test = &run.tests[idx];
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
        let summaries = summaries::summaries(test, &run.hosts, &metrics);
        let together: Vec<&TestRun> = std::iter::once(test).chain(paired_tests(run, test)).collect();
        let conservation = if lead_test(run, test).is_none() {
            conservation::conservation(&together, &run.hosts, run.plan.via.as_deref())
        } else {
            None
        };
        (run.tests[idx].summaries, run.tests[idx].conservation) = (summaries, conservation);
        run.tests[idx].users = steps::users(&run.tests[idx], &run.hosts);
        run.tests[idx].flows = flows::flows(run, &run.tests[idx], context);
    }
    // The layer below may stand anywhere in the list, so limits wait for all values.
    for idx in 0..run.tests.len() {
        run.tests[idx].limits = limits::limits(run, &run.tests[idx], context);
    }
    run.findings = findings::findings(run, context);
    for test in &mut run.tests {
        let about = run.findings.iter().filter(|finding| finding.tests.contains(&test.name));
        test.findings = about.map(|finding| finding.id.clone()).collect();
        test.findings.dedup();
    }
    run.verdict = verdict::verdict(run);
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
