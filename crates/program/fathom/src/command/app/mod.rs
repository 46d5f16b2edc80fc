//! `fathom app`: users that follow a script. Each subcommand has one file and one row.

mod check;
mod format;
mod import;
mod run;
mod scenario;
mod r#try;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command as Shape};

use super::Command;
use fathom_run::exit::{Exit, UserError};

/// In the order of a typical workflow.
const COMMANDS: &[Command] = &[
    Command { name: "run", about: "Run a scenario or a script against a target", define: run::define, run: run::run },
    Command {
        name: "try",
        about: "Send one user through a scenario, and show every request and answer",
        define: r#try::define,
        run: r#try::run,
    },
    Command {
        name: "check",
        about: "Report mistakes in scenarios and how to fix them",
        define: check::define,
        run: check::run,
    },
    Command {
        name: "format",
        about: "Write scenarios as all others are written",
        define: format::define,
        run: format::run,
    },
    Command {
        name: "import",
        about: "Make scenarios of HAR files, command lines of curl and test plans of JMeter",
        define: import::define,
        run: import::run,
    },
];

pub(super) fn define(shape: Shape) -> Shape {
    super::add_commands(shape.subcommand_required(true).arg_required_else_help(true), COMMANDS)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    super::dispatch(matches, COMMANDS)
}

/// Returns the argument for the scenarios that a command processes.
fn files(help: &'static str) -> Arg {
    Arg::new("file")
        .value_name("FILE")
        .required(true)
        .num_args(1..)
        .value_parser(clap::value_parser!(PathBuf))
        .help(help)
}

/// Returns the scenarios that the command line names.
fn given_files(matches: &ArgMatches) -> impl Iterator<Item = &PathBuf> {
    matches.get_many::<PathBuf>("file").into_iter().flatten()
}

/// Reads a text file, or standard input for `-`. It stops at a length that no scenario may have.
fn read(path: &Path) -> Result<String, UserError> {
    const LENGTH_MAX: u64 = 2 << 20;
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let source: Box<dyn Read> =
            if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
        source.take(LENGTH_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let shown = path.display();
    if path.extension().is_some_and(|extension| extension == "lua") {
        return Err(UserError::new(
            Exit::Usage,
            format!("{shown} is a script for wrk, and this command reads scenarios"),
        )
        .with_line("use", format!("fathom app run {shown} http://127.0.0.1:8080/")));
    }
    read().map_err(|error| {
        let user_error = UserError::new(Exit::Usage, format!("cannot read {shown}"));
        if error.kind() == io::ErrorKind::InvalidData {
            let user_error = user_error.with_line("why", "it is not text in UTF-8, as scenarios are");
            return user_error.with_line("see", format!("file {shown}"));
        }
        user_error.with_line("why", error.to_string())
    })
}
