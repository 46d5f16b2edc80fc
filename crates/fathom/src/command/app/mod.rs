//! `fathom app`: users that follow a script; one file and one row for each thing that can be done with a script.

mod check;
mod format;
mod import;
mod run;
mod scenario;
mod r#try;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use clap::{ArgMatches, Command as Shape};

use crate::exit::{Exit, Screen};

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
    Command { name: "run", about: "Run a scenario or a script against a target", shape: run::shape, run: run::run },
    Command {
        name: "try",
        about: "Send one user through a scenario, and show every request and answer",
        shape: r#try::shape,
        run: r#try::run,
    },
    Command {
        name: "check",
        about: "Say what is wrong with scenarios, and how to mend it",
        shape: check::shape,
        run: check::run,
    },
    Command {
        name: "format",
        about: "Write scenarios as all others are written",
        shape: format::shape,
        run: format::run,
    },
    Command {
        name: "import",
        about: "Make scenarios of HAR files, command lines of curl and test plans of JMeter",
        shape: import::shape,
        run: import::run,
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

/// Reads a file of text, or standard input for `-`; no more of it than tells that it is too long for a scenario.
fn read(path: &Path) -> Result<String, Screen> {
    const LENGTH_MAX: u64 = 2 << 20;
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let source: Box<dyn Read> =
            if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
        source.take(LENGTH_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        Screen::new(Exit::Usage, format!("cannot read {}", path.display())).line("why", error.to_string())
    })
}
