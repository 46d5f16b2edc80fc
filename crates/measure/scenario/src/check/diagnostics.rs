//! Collects the diagnostics of a scenario, and visits its statements.

use std::collections::HashSet;

use super::super::{
    ast::{Scenario, Statement, StepDef},
    diagnostic::{Diagnostic, FAULTS_MAX},
};

/// The diagnostics, each once: a part is checked for each user who runs it.
#[derive(Default)]
pub(super) struct Diagnostics {
    pub(super) all: Vec<Diagnostic>,
    seen: HashSet<(usize, String)>,
}

impl Diagnostics {
    /// Whether there are more than a person reads at once, so that checking can stop.
    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= 10 * FAULTS_MAX
    }

    pub(super) fn add(&mut self, diagnostic: Diagnostic) {
        if !self.is_full() && self.seen.insert((diagnostic.span.start, diagnostic.message.clone())) {
            self.all.push(diagnostic);
        }
    }
}

/// Visits all statements, including nested ones.
pub(super) fn for_each_statement<'a>(
    blocks: impl IntoIterator<Item = &'a [Statement]>,
    look: &mut impl FnMut(&'a Statement),
) {
    for statement in blocks.into_iter().flatten() {
        look(statement);
        for_each_statement(statement.blocks(), look);
    }
}

/// All steps of a scenario.
pub(super) fn steps(scenario: &Scenario) -> Vec<&StepDef> {
    let mut steps = Vec::new();
    for_each_statement(scenario.blocks(), &mut |statement| {
        if let Statement::Step(step) = statement {
            steps.push(&**step);
        }
    });
    steps
}
