//! The output of scripts in a result that is printed as text.

use std::io::{self, Write};

use fathom_lua::facts;
use fathom_model::Run;

use crate::terminal::sanitized;

/// Prints the output of scripts after the result, per trial if there are several.
pub fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    for test in &run.tests {
        for (round, trial) in (1..).zip(&test.trials) {
            let parts = [facts::COMPLAINTS, facts::BEFORE, facts::DURING, facts::AFTER, facts::ERRORS];
            let said = |name: &str| trial.records.values().find_map(|record| record.facts.get(name));
            let texts: Vec<&String> = parts.into_iter().filter_map(said).collect();
            if texts.is_empty() {
                continue;
            }
            let which = if test.trials.len() > 1 { format!(", round {round}") } else { String::new() };
            writeln!(out, "\nprinted by the script{which}")?;
            for line in texts.iter().flat_map(|text| text.lines()) {
                // Text from other sources must not control the terminal.
                writeln!(out, "  {}", sanitized(line))?;
            }
        }
    }
    Ok(())
}
