//! `fathom app check`: reports errors in scenarios.

use std::{
    io::{self, Write as _},
    path::Path,
};

use clap::{ArgMatches, Command};
use fathom_analyze::{promise, steps};
use fathom_model::units::counted;
use fathom_scenario as scenario;
use fathom_scenario::{Diagnostic, Severity, ast::Scenario};

use fathom_run::exit::Exit;

const NOTES: &str = "\
Example:
  fathom app check plans/shop.scenario

Files that a scenario names are looked for in its folder. The exit code is 2 when something is wrong, 0 when there are
only warnings.";

pub(super) fn define(command: Command) -> Command {
    command.arg(super::input::files("scenarios; - is standard input")).after_help(NOTES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let mut exit = Exit::Pass;
    for path in super::input::given_files(matches) {
        let text = super::input::read(path)?;
        let found = match scenario::parse(&text) {
            Ok(parsed) => {
                let mut found = scenario::check(&parsed, path.parent().unwrap_or(Path::new("")));
                found.extend(check_promises(&parsed));
                found
            }
            Err(faults) => faults,
        };
        if !scenario::is_sound(&found) {
            exit = Exit::Usage;
        }
        let mut out = io::stdout().lock();
        write!(out, "{}", scenario::render(&found, &path.display().to_string(), &text))?;
        writeln!(out, "{}: {}", path.display(), summary(&found))?;
    }
    Ok(exit)
}

/// Reports promises about unknown metrics or in the wrong unit. Only this crate knows the metrics.
fn check_promises(scenario: &Scenario) -> Vec<Diagnostic> {
    let texts = |terms: &[scenario::ast::Name]| terms.iter().map(|term| term.text.clone()).collect::<Vec<_>>();
    let faults = scenario.promises.iter().flat_map(|promise| {
        let texts = texts(&promise.terms);
        let metrics = match &promise.of {
            Some(step) => steps::step_metrics(&step.text, &texts),
            None => steps::script_metrics(&texts),
        };
        let fault = move |term: &scenario::ast::Name| {
            let error = promise::split(&term.text, &metrics).err()?;
            Some(Diagnostic::error(term.span, error.to_string()).fix(error.hint()))
        };
        promise.terms.iter().filter_map(fault)
    });
    faults.collect()
}

/// `2 errors, 1 warning`
fn summary(found: &[Diagnostic]) -> String {
    let of = |severity: Severity, word: &str| {
        let n = found.iter().filter(|diagnostic| diagnostic.severity == severity).count();
        (n > 0).then(|| counted(n as u64, word))
    };
    let counts: Vec<String> =
        [of(Severity::Error, "error"), of(Severity::Warning, "warning")].into_iter().flatten().collect();
    if counts.is_empty() { "nothing is wrong".to_owned() } else { counts.join(", ") }
}
