//! The commands: one file and one row each.

mod agent;
mod allow;
mod app;
mod as_tool;
mod balancer;
mod benchmark;
mod calibrate;
mod cloud;
mod correlate;
mod direction;
mod doctor;
mod evaluate;
mod evaluation_length;
mod find_limit;
mod generate;
mod help;
mod hosts;
mod lab;
mod layer;
mod many_hosts;
mod measurement;
mod path;
#[cfg(test)]
mod printed_commands;
mod probe;
mod record;
mod replay;
mod report;
mod rfc6349;
mod run;
mod scan;
mod scenario_files;
mod serve;
mod simulate;
mod test_hosts;
mod watch;
mod watch_source;

use clap::{ArgMatches, Command as Shape, error::ErrorKind};

use fathom_model::Layer;
use fathom_run::exit::Exit;

struct Command {
    name: &'static str,
    about: &'static str,
    /// Adds arguments and examples.
    define: fn(Shape) -> Shape,
    run: fn(&ArgMatches) -> anyhow::Result<Exit>,
}

/// The commands in the order of the help: layers from top to bottom, then the others.
const COMMANDS: &[Command] = &[
    Command {
        name: "evaluate",
        about: "Measure every layer and name what holds each back; without a target, in a lab on this machine",
        define: evaluate::define,
        run: evaluate::run,
    },
    Command { name: "run", about: "Run a plan file", define: run::define, run: run::run },
    Command {
        name: "app",
        about: "Users that follow a script: requests, answers, waits",
        define: app::define,
        run: app::run,
    },
    Command {
        name: "record",
        about: "A proxy that writes what a browser does as a scenario of `fathom app`",
        define: record::define,
        run: record::run,
    },
    Command {
        name: Layer::Http.command(),
        about: layer::HTTP.about,
        define: |shape| layer::HTTP.define(shape),
        run: |given| layer::HTTP.run(given),
    },
    Command {
        name: Layer::Tcp.command(),
        about: layer::TCP.about,
        define: |shape| layer::TCP.define(shape),
        run: |given| layer::TCP.run(given),
    },
    Command {
        name: Layer::Udp.command(),
        about: layer::UDP.about,
        define: |shape| layer::UDP.define(shape),
        run: |given| layer::UDP.run(given),
    },
    Command {
        name: Layer::Frames.command(),
        about: layer::PACKET.about,
        define: |shape| layer::PACKET.define(shape),
        run: |given| layer::PACKET.run(given),
    },
    Command {
        name: Layer::Path.command(),
        about: "Single packets to a host: round trips, loss, outages, path MTU, route, ports, fragments",
        define: probe::define,
        run: probe::run,
    },
    Command {
        name: "path",
        about: "Two paths in turn, directly and through a device: what the device costs, loses and adds",
        define: path::define,
        run: path::run,
    },
    Command {
        name: "watch",
        about: "The counters of this host live: interfaces, cores, TCP, UDP, with findings",
        define: watch::define,
        run: watch::run,
    },
    Command {
        name: "replay",
        about: "The requests in a capture, an access log or on a device: shown, or sent to another server",
        define: replay::define,
        run: replay::run,
    },
    Command {
        name: "correlate",
        about: "Make one scenario of two recordings of the same clicks, with everything dynamic taken from answers",
        define: correlate::define,
        run: correlate::run,
    },
    Command {
        name: "simulate",
        about: "Tables of load balancers and of the kernel in virtual time: sizes, losses, what a change moves",
        define: simulate::define,
        run: simulate::run,
    },
    Command {
        name: "hosts",
        about: "The hosts of an inventory: whether they are ready, what they are, and import from Ansible",
        define: hosts::define,
        run: hosts::run,
    },
    Command {
        name: "allow",
        about: "Whom this machine may load besides itself, its labs and hosts with a key",
        define: allow::define,
        run: allow::run,
    },
    Command {
        name: "serve",
        about: "Run the target side: agents of others and an HTTP responder",
        define: serve::define,
        run: serve::run,
    },
    Command {
        name: "calibrate",
        about: "Measure the tool's own ceilings on this machine",
        define: calibrate::define,
        run: calibrate::run,
    },
    Command {
        name: "agent",
        about: "Run as one host of a test, driven over standard streams",
        define: agent::define,
        run: agent::run,
    },
    Command {
        name: "balancer",
        about: "A reference load balancer whose defects are switched on: the device that tests of devices are tested with",
        define: balancer::define,
        run: balancer::run,
    },
    Command { name: "lab", about: "Topologies in network namespaces", define: lab::define, run: lab::run },
    Command {
        name: "report",
        about: "Show a kept result again, in any format",
        define: report::define,
        run: report::run,
    },
    Command {
        name: "doctor",
        about: "What this machine allows, why not, and how to allow the rest",
        define: doctor::define,
        run: doctor::run,
    },
    Command {
        name: "as",
        about: "Run as another tool: wrk, ab, webbench, iperf, iperf3, hping3, sar …",
        define: as_tool::define,
        run: as_tool::run,
    },
    Command {
        name: "generate",
        about: "Write man pages and shell completions",
        define: generate::define,
        run: generate::run,
    },
];

const EXIT_CODES: &str = "\
Exit codes: 0 pass · 1 no valid result · 2 usage · 3 nothing was started (permission, refused target, wrong key, unreachable)
            4 incomplete, result kept · 10 promise broken · 12 promise open, or disturbed (--strict) · 130, 143 ended by a signal";

/// Returns the complete command line for clap.
fn define() -> Shape {
    let shape = Shape::new("fathom")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures the network performance of a Linux system layer by layer, and names what holds it back")
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(110);
    add_commands(shape, COMMANDS)
}

/// Adds a table of commands, each with its own arguments.
fn add_commands(shape: Shape, commands: &[Command]) -> Shape {
    let shaped =
        |command: &Command| help::with_help_layout((command.define)(Shape::new(command.name).about(command.about)));
    commands.iter().fold(shape, |shape, command| shape.subcommand(shaped(command)))
}

/// Runs the command that the command line named.
fn dispatch(matches: &ArgMatches, commands: &[Command]) -> anyhow::Result<Exit> {
    let (name, given) = matches.subcommand().expect("clap requires a command");
    let command = commands.iter().find(|command| command.name == name).expect("clap knows the commands of the table");
    (command.run)(given)
}

/// Parses the command line and runs the command.
pub(crate) fn run(words: &[String]) -> anyhow::Result<Exit> {
    let matches = match define().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if error.exit_code() == 0 || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            use std::io::Write as _;
            write!(std::io::stdout().lock(), "{}", error.render())?;
            return Ok(Exit::Pass);
        }
        Err(error) => return Err(help::usage_error(&error, words).into()),
    };
    dispatch(&matches, COMMANDS)
}
