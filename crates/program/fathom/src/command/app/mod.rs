//! `fathom app`: users that follow a script. Each subcommand has one file and one row.

mod check;
mod format;
mod import;
mod input;
mod run;
mod scenario;
mod r#try;

use clap::{ArgMatches, Command as Shape};

use super::Command;
use fathom_run::exit::Exit;

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
