//! `fathom simulate`: the tables of the reference balancer and of the kernel in virtual time. Each subcommand has one file and one row.

mod capture;
mod conntrack;
mod fragments;
mod maglev;
mod output;
mod runs;
mod values;

use clap::{ArgMatches, Command as Shape};

use super::Command;
use fathom_run::exit::Exit;

const COMMANDS: &[Command] = &[
    Command {
        name: "fragments",
        about: "Which size of a fragment table loses how much, and the smallest that is enough",
        define: fragments::define,
        run: fragments::run,
    },
    Command {
        name: "maglev",
        about: "How evenly Maglev tables spread, and how many flows move when targets go",
        define: maglev::define,
        run: maglev::run,
    },
    Command {
        name: "conntrack",
        about: "Which size of the kernel's connection table a load needs",
        define: conntrack::define,
        run: conntrack::run,
    },
    Command {
        name: "capture",
        about: "Packets of a capture through the reference balancer, in other orders",
        define: capture::define,
        run: capture::run,
    },
];

pub(super) fn define(shape: Shape) -> Shape {
    super::add_commands(shape.subcommand_required(true).arg_required_else_help(true), COMMANDS)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    super::dispatch(matches, COMMANDS)
}
