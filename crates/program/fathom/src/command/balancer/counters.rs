//! `fathom balancer counters`: what a balancer that runs has counted.

use std::io::{self, Write as _};

use super::{ask, counter_text::write_text, json, name};
use clap::{ArgMatches, Command};
use fathom_balancer::device::ControlRequest;
use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    command.args([name(), json()])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let counters = ask(matches, &ControlRequest::Counters)?;
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        writeln!(out, "{counters:#}")?;
    } else {
        write_text(&mut out, "", &counters)?;
    }
    Ok(Exit::Pass)
}
