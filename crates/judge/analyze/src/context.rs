//! The input of the analysis that is not in the records, and the tests that run together.

use std::collections::BTreeMap;

use fathom_model::{Metric, Run, TestRun};

/// Input of the analysis that no record contains.
#[derive(Debug, Clone, Default)]
pub struct AnalysisContext {
    /// The metrics of each kind of test, the most important first.
    pub metrics: BTreeMap<String, Vec<Metric>>,
    /// The rates that fathom itself reaches on this machine in a test like this, by test name and metric.
    pub ceilings: BTreeMap<String, BTreeMap<String, f64>>,
}

/// Returns the test that another one runs together with, if there is one.
pub(crate) fn lead_test<'a>(run: &'a Run, test: &TestRun) -> Option<&'a TestRun> {
    let planned = run.plan.tests.iter().find(|planned| planned.name == test.name)?;
    run.tests.iter().find(|other| Some(&other.name) == planned.paired_with.as_ref())
}

/// Returns the tests that run together with this one.
pub(crate) fn paired_tests<'a>(run: &'a Run, test: &'a TestRun) -> impl Iterator<Item = &'a TestRun> {
    let of_run = |name: &str| run.tests.iter().find(|other| other.name == name);
    let planned = run.plan.tests.iter().filter(|planned| planned.paired_with.as_ref() == Some(&test.name));
    planned.filter_map(move |planned| of_run(&planned.name))
}
