//! What a test is analysed with: what no record holds, and the tests that are made together with it.

use std::collections::BTreeMap;

use fathom_model::{Metric, Run, TestRun};

/// What the analysis must be told because no record holds it.
#[derive(Debug, Clone, Default)]
pub struct AnalysisContext {
    /// What each kind of test measures, the most important first.
    pub metrics: BTreeMap<String, Vec<Metric>>,
    /// What the tool itself reaches on this machine in a test like this: by the test's name, then by metric.
    pub ceilings: BTreeMap<String, BTreeMap<String, f64>>,
}

/// The test that another is made together with, if it is not on its own.
pub(crate) fn lead_test<'a>(run: &'a Run, test: &TestRun) -> Option<&'a TestRun> {
    let planned = run.plan.tests.iter().find(|planned| planned.name == test.name)?;
    run.tests.iter().find(|other| Some(&other.name) == planned.beside.as_ref())
}

/// The tests that are made together with one.
pub(crate) fn paired_tests<'a>(run: &'a Run, test: &'a TestRun) -> impl Iterator<Item = &'a TestRun> {
    let of_run = |name: &str| run.tests.iter().find(|other| other.name == name);
    let planned = run.plan.tests.iter().filter(|planned| planned.beside.as_ref() == Some(&test.name));
    planned.filter_map(move |planned| of_run(&planned.name))
}
