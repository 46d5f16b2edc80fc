//! `fathom balancer kill`: what `kill -9` does to a balancer that runs.

use clap::{ArgMatches, Command};
use fathom_balancer::device;
use fathom_run::exit::Exit;

use super::{name, user_error};

pub(super) fn define(command: Command) -> Command {
    command.arg(name())
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let name = matches.get_one::<String>("name").expect("it has a default");
    device::kill(name).map_err(|error| user_error(&error))?;
    Ok(Exit::Pass)
}
