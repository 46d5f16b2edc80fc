//! A wrk run with a script: the same text, with the script's output where wrk prints it.

use std::io::{self, IsTerminal as _};

use fathom_lua::facts;
use fathom_model::{Record, Stage, Timeline};

use super::{FAILED, options::Options, text};
use crate::closed_loop::{self, ClosedLoop, MeasuredLoop};
use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
};

/// Returns the load with a script instead of one fixed request.
pub(super) fn with(load: ClosedLoop, allowed: &AllowList, path: &str, args: &[String]) -> anyhow::Result<ClosedLoop> {
    let words = shlex::try_join(args.iter().map(String::as_str));
    let words = words
        .map_err(|error| UserError::new(FAILED, format!("the script's arguments cannot be passed on: {error}")))?;
    let settings = load.settings.with("script", path).with("args", words).with(fathom_lua::ALLOW, allowed.list());
    Ok(ClosedLoop { kind: "app_lua", settings: settings.with("lenient", "true"), ..load })
}

/// Runs the load and prints in wrk's order: the script's output before the run, the head, its output during the run, the
/// result, and its output after the run.
pub(super) fn measure(load: &ClosedLoop, options: &Options, allowed: &AllowList) -> anyhow::Result<MeasuredLoop> {
    // On a terminal, the head appears at once to show that the run has started. Otherwise the output has wrk's order.
    let is_watched = io::stdout().is_terminal();
    if is_watched {
        closed_loop::print_now(&text::head(options))?;
    }
    let measured = load.measure(None, allowed).map_err(|error| match error.downcast::<UserError>() {
        Ok(mut user_error) => {
            user_error.exit = FAILED;
            user_error.into()
        }
        Err(error) => error,
    })?;
    // Counts the whole run, like the script's `done`, and not only whole intervals.
    let record = &Record { timeline: Timeline::default(), ..measured.record()?.clone() };
    let said = |name: &str| record.facts.get(name).map_or("", String::as_str);
    for line in said(facts::COMPLAINTS).lines().chain(said(facts::ERRORS).lines()) {
        eprintln!("{line}");
    }
    closed_loop::print_now(said(facts::BEFORE))?;
    if !is_watched {
        closed_loop::print_now(&text::head(options))?;
    }
    closed_loop::print_now(said(facts::DURING))?;
    closed_loop::print_now(&text::body(&text::WrkResult::of(record, options), options))?;
    closed_loop::print_now(said(facts::AFTER))?;
    for line in failed(record) {
        eprintln!("{line}");
    }
    Ok(measured)
}

/// Returns the exit code that the script requested, if any.
pub(super) fn exit(record: &Record) -> Exit {
    let code = record.facts.get(facts::EXIT_CODE).and_then(|code| code.parse().ok());
    code.map_or(Exit::Pass, Exit::Code)
}

/// Returns the script's errors, one per line.
fn failed(record: &Record) -> impl Iterator<Item = String> + '_ {
    let errors = record.errors.iter().filter(|(failure, _)| failure.stage == Stage::Script);
    errors.map(|(failure, n)| if *n == 1 { failure.cause.to_string() } else { format!("{}, {n} times", failure.cause) })
}
