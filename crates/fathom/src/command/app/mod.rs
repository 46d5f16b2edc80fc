//! `fathom app`: users that follow a script; one file and one row for each thing that can be done with a script.

mod check;
mod run;

use clap::{ArgMatches, Command as Shape};

use crate::exit::Exit;

/// What can be done with a script.
struct Command {
    name: &'static str,
    about: &'static str,
    /// Adds arguments and examples.
    shape: fn(Shape) -> Shape,
    run: fn(&ArgMatches) -> anyhow::Result<Exit>,
}

/// In the order in which one comes to need them.
const COMMANDS: &[Command] = &[
    Command { name: "run", about: "Run a script against a target", shape: run::shape, run: run::run },
    Command {
        name: "check",
        about: "Say what is wrong with scenarios, and how to mend it",
        shape: check::shape,
        run: check::run,
    },
];

pub(super) fn shape(shape: Shape) -> Shape {
    let shape = shape.subcommand_required(true).arg_required_else_help(true);
    COMMANDS
        .iter()
        .fold(shape, |shape, command| shape.subcommand((command.shape)(Shape::new(command.name).about(command.about))))
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (name, given) = matches.subcommand().expect("clap requires a subcommand");
    let command = COMMANDS.iter().find(|command| command.name == name).expect("clap knows the commands of the table");
    (command.run)(given)
}
