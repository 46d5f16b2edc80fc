//! The commands: one file and one row each.

mod agent;
mod allow;
mod app;
mod as_tool;
mod benchmark;
mod calibrate;
mod direction;
mod doctor;
mod evaluate;
mod find;
mod generate;
mod help;
mod lab;
mod layer;
mod measuring;
#[cfg(test)]
mod printed;
mod probe;
mod report;
mod rfc6349;
mod run;
mod scan;
mod serve;

pub(crate) use lab::screen as lab_screen;

use clap::{ArgMatches, Command as Shape, error::ErrorKind};

use crate::exit::Exit;

/// A command of the program.
struct Command {
    name: &'static str,
    about: &'static str,
    /// Adds arguments and examples.
    shape: fn(Shape) -> Shape,
    run: fn(&ArgMatches) -> anyhow::Result<Exit>,
}

/// The commands in the order of the help: layers from top to bottom, then what surrounds them.
const COMMANDS: &[Command] = &[
    Command {
        name: "evaluate",
        about: "Measure every layer and name what holds each back; without a target, in a lab on this machine",
        shape: evaluate::shape,
        run: evaluate::run,
    },
    Command { name: "run", about: "Run a plan file", shape: run::shape, run: run::run },
    Command {
        name: "app",
        about: "Users that follow a script: requests, answers, waits",
        shape: app::shape,
        run: app::run,
    },
    Command {
        name: "http",
        about: layer::HTTP.about,
        shape: |shape| layer::HTTP.shape(shape),
        run: |given| layer::HTTP.run(given),
    },
    Command {
        name: "tcp",
        about: layer::TCP.about,
        shape: |shape| layer::TCP.shape(shape),
        run: |given| layer::TCP.run(given),
    },
    Command {
        name: "udp",
        about: layer::UDP.about,
        shape: |shape| layer::UDP.shape(shape),
        run: |given| layer::UDP.run(given),
    },
    Command {
        name: "packet",
        about: layer::PACKET.about,
        shape: |shape| layer::PACKET.shape(shape),
        run: |given| layer::PACKET.run(given),
    },
    Command {
        name: "probe",
        about: "Single packets to a host: round trips, loss, outages, path MTU, route, ports",
        shape: probe::shape,
        run: probe::run,
    },
    Command {
        name: "allow",
        about: "Whom this machine may load besides itself, its labs and hosts with a key",
        shape: allow::shape,
        run: allow::run,
    },
    Command {
        name: "serve",
        about: "Run the target side: agents of others and an HTTP responder",
        shape: serve::shape,
        run: serve::run,
    },
    Command {
        name: "calibrate",
        about: "Measure the tool's own ceilings on this machine",
        shape: calibrate::shape,
        run: calibrate::run,
    },
    Command {
        name: "agent",
        about: "Run as one host of a test, driven over standard streams",
        shape: agent::shape,
        run: agent::run,
    },
    Command { name: "lab", about: "Topologies in network namespaces", shape: lab::shape, run: lab::run },
    Command {
        name: "report",
        about: "Show a kept result again, in any format",
        shape: report::shape,
        run: report::run,
    },
    Command {
        name: "doctor",
        about: "What this machine allows, why not, and how to allow the rest",
        shape: doctor::shape,
        run: doctor::run,
    },
    Command {
        name: "as",
        about: "Run as another tool: wrk, ab, webbench, iperf3, hping3 …",
        shape: as_tool::shape,
        run: as_tool::run,
    },
    Command {
        name: "generate",
        about: "Write man pages and shell completions",
        shape: generate::shape,
        run: generate::run,
    },
];

const EXIT_CODES: &str = "\
Exit codes: 0 pass · 1 no valid result · 2 usage · 3 nothing was started (permission, refused target, wrong key, unreachable)
            4 incomplete, result kept · 10 promise broken · 12 promise open, or disturbed (--strict) · 130, 143 ended by a signal";

/// The whole command line as clap knows it.
fn shape() -> Shape {
    let shape = Shape::new("fathom")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures the network performance of a Linux system layer by layer, and names what holds it back")
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(110);
    with_commands(shape, COMMANDS)
}

/// Adds a table of commands, each with its own arguments.
fn with_commands(shape: Shape, commands: &[Command]) -> Shape {
    let shaped = |command: &Command| help::explained((command.shape)(Shape::new(command.name).about(command.about)));
    commands.iter().fold(shape, |shape, command| shape.subcommand(shaped(command)))
}

/// Runs the command of a table that the command line named.
fn dispatch(matches: &ArgMatches, commands: &[Command]) -> anyhow::Result<Exit> {
    let (name, given) = matches.subcommand().expect("clap requires a command");
    let command = commands.iter().find(|command| command.name == name).expect("clap knows the commands of the table");
    (command.run)(given)
}

/// Reads the command line and runs the command.
pub(crate) fn run(words: &[String]) -> anyhow::Result<Exit> {
    let matches = match shape().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if error.exit_code() == 0 || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            use std::io::Write as _;
            write!(std::io::stdout().lock(), "{}", error.render())?;
            return Ok(Exit::Pass);
        }
        Err(error) => return Err(help::usage(&error, words).into()),
    };
    dispatch(&matches, COMMANDS)
}
