//! `fathom balancer queues`: how many queues of a balancer that runs are used.

use std::num::NonZeroU16;

use clap::{Arg, ArgMatches, Command, value_parser};
use fathom_balancer::device::ControlRequest;

use super::{ask, name};
use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    let number = Arg::new("number")
        .value_name("N")
        .required(true)
        .value_parser(value_parser!(NonZeroU16))
        .help("the first N of its queues get packets from now on");
    command.args([number, name()])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let number = *matches.get_one::<NonZeroU16>("number").expect("clap requires the number");
    ask(matches, &ControlRequest::UseQueues(number))?;
    Ok(Exit::Pass)
}
