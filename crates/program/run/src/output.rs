//! The output of a result: its format, its destination and the exit code.

use std::{
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_model::{Run, VerdictState, run::Completeness};
use fathom_report::{
    FORMATS, Format, find_format,
    formats::{Colour, TextFormat, TextStyle},
};

use crate::{
    exit::{Exit, UserError},
    script_output,
};

/// Returns the options that select the output format.
pub fn arguments() -> Vec<Arg> {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).help(help).action(ArgAction::SetTrue).help_heading("Output")
    };
    vec![
        flag("json", "print one JSON document").conflicts_with_all(["ndjson", "csv", "format"]),
        flag("ndjson", "print events as they happen, a line each, and the document at the end")
            .conflicts_with_all(["csv", "format"]),
        flag("csv", "print a row per value").conflicts_with("format"),
        flag("strict", "a run that other work disturbed ends with exit code 12 too").conflicts_with("lenient"),
        flag("lenient", "a promise that stays open ends with exit code 0 instead of 12"),
        Arg::new("format")
            .long("format")
            .value_name("NAME")
            .help_heading("Output")
            .help("print this format")
            .value_parser(FORMATS.iter().map(|format| format.name()).collect::<Vec<_>>()),
    ]
}

/// Returns the options of a command that measures: where it saves its result, and whether it shows progress.
pub fn result_arguments() -> Vec<Arg> {
    let folder = Arg::new("output").long("output").short('o').value_name("FOLDER");
    let quiet = Arg::new("quiet").long("quiet").action(ArgAction::SetTrue);
    vec![
        folder
            .value_parser(clap::value_parser!(PathBuf))
            .help("keep the document and the report in this folder")
            .help_heading("Output"),
        quiet.help("show neither an estimate nor progress").help_heading("Output"),
    ]
}

/// Returns true if the result is printed as text for people.
pub fn is_text(matches: &ArgMatches) -> bool {
    format_name(matches) == "text"
}

/// Finds a format by its name.
pub fn format(name: &str) -> anyhow::Result<&'static dyn Format> {
    let known = || FORMATS.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
    find_format(name).ok_or_else(|| {
        UserError::new(Exit::Usage, format!("there is no format `{name}`")).with_line("use", known()).into()
    })
}

/// Returns the name of the requested format, or `text`.
pub fn format_name(matches: &ArgMatches) -> &str {
    let flags = ["json", "ndjson", "csv"];
    let flag = flags.into_iter().find(|name| matches.get_flag(name));
    flag.or_else(|| matches.get_one::<String>("format").map(String::as_str)).unwrap_or("text")
}

/// Returns true if events are printed as they happen.
pub fn is_live(matches: &ArgMatches) -> bool {
    format_name(matches) == "ndjson"
}

/// The longest line in columns, on a terminal of any width: longer lines are hard to read.
const WIDTH_MAX: usize = 160;

/// Returns the layout of text on stdout.
pub fn text_style() -> TextStyle {
    let stdout = io::stdout();
    let is_plain = !stdout.is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = if is_plain { Colour::Never } else { Colour::Ansi };
    let width = terminal_size::terminal_size_of(&stdout)
        .map_or(TextStyle::PLAIN.width, |(width, _)| usize::from(width.0).min(WIDTH_MAX));
    TextStyle { colour, width }
}

/// Prints a result to stdout in the requested format and returns the exit code.
pub fn print(run: &Run, matches: &ArgMatches) -> anyhow::Result<Exit> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match format_name(matches) {
        "text" => {
            TextFormat(text_style()).write(run, &mut out)?;
            script_output::write(run, &mut out)?;
        }
        // All events before this last line were printed as they happened.
        "ndjson" => {
            serde_json::to_writer(&mut out, run)?;
            out.write_all(b"\n")?;
        }
        name => format(name)?.write(run, &mut out)?,
    }
    out.flush()?;
    Ok(exit_for(run, Strictness::of(matches)))
}

/// How `--strict` and `--lenient` judge a run that neither passed nor failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// An open promise fails the run; a disturbance does not.
    Default,
    /// Both an open promise and a disturbance fail the run.
    Strict,
    /// Neither fails the run.
    Lenient,
}

impl Strictness {
    /// Reads the strictness from the command line.
    pub fn of(matches: &ArgMatches) -> Self {
        match (matches.get_flag("strict"), matches.get_flag("lenient")) {
            (true, _) => Self::Strict,
            (_, true) => Self::Lenient,
            _ => Self::Default,
        }
    }
}

/// Returns the exit code of a finished run.
pub fn exit_for(run: &Run, judging: Strictness) -> Exit {
    let none_began = run.tests.iter().all(|test| test.unavailable.is_some() && test.trials.is_empty());
    match (run.verdict.state, judging) {
        // A test that fails after its start makes the run incomplete.
        (VerdictState::Invalid, _) if none_began && run.completeness == Completeness::Complete => Exit::Preflight,
        (VerdictState::Invalid, _) => Exit::Failed,
        (VerdictState::Incomplete, _) => Exit::Incomplete,
        (VerdictState::Broken, _) => Exit::Threshold,
        (VerdictState::Open, Strictness::Default | Strictness::Strict)
        | (VerdictState::Disturbed, Strictness::Strict) => Exit::Inconclusive,
        (VerdictState::Open | VerdictState::Disturbed | VerdictState::Measured | VerdictState::Kept, _) => Exit::Pass,
    }
}
