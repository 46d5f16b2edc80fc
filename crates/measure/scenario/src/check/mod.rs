//! Checks a parsed scenario: names that do not resolve, values that are never set, files that are missing.

mod diagnostics;
mod files;
mod flow;
mod names;
mod requests;

use std::path::Path;

use super::{
    ast::Scenario,
    diagnostic::{Diagnostic, FAULTS_MAX, Severity},
};

use diagnostics::{Diagnostics, for_each_statement, steps};

/// Runs all checks that need more than the grammar; files are looked up in the folder of the scenario.
///
/// A scenario with an error must not run; one with warnings may. The diagnostics are in the order of the text.
#[must_use]
pub fn check(scenario: &Scenario, folder: &Path) -> Vec<Diagnostic> {
    all(scenario, |found| files::check(scenario, folder, found))
}

/// Checks a text without a folder: its files are not looked up.
pub(super) fn check_text(scenario: &Scenario) -> Vec<Diagnostic> {
    all(scenario, |_| files::Columns::new())
}

fn all(scenario: &Scenario, columns: impl FnOnce(&mut Diagnostics) -> files::Columns) -> Vec<Diagnostic> {
    let mut found = Diagnostics::default();
    names::check(scenario, &mut found);
    requests::check(scenario, &mut found);
    let columns = columns(&mut found);
    flow::check(scenario, &columns, &mut found);
    let mut all = found.all;
    all.sort_by_key(|diagnostic| (diagnostic.span.start, diagnostic.severity));
    // If not all fit, errors have priority over warnings.
    if all.len() > FAULTS_MAX {
        all.sort_by_key(|diagnostic| diagnostic.severity);
        all.truncate(FAULTS_MAX);
        all.sort_by_key(|diagnostic| diagnostic.span.start);
    }
    all
}

/// Whether no error keeps a scenario from running.
#[must_use]
pub fn is_sound(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error)
}
