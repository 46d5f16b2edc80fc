//! `fathom balancer targets`: the targets of a balancer that runs.

use std::io::{self, Write as _};

use clap::{Arg, ArgMatches, Command};
use fathom_balancer::{
    balancer::DEFAULT_GROUP,
    device::{ControlRequest, TARGET_FORM},
    targets::WEIGHT_MAX,
};

use super::{ask, json, name, user_error};
use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    let group = || {
        Arg::new("group")
            .long("group")
            .value_name("GROUP")
            .default_value(DEFAULT_GROUP)
            .help("group of targets; flow rules choose among groups")
    };
    let target = Arg::new("target").value_name("TARGET").required(true).help(TARGET_FORM);
    let named = Arg::new("target").value_name("NAME").required(true).help("name of the target");
    let weight = Arg::new("weight")
        .value_name("WEIGHT")
        .required(true)
        .value_parser(clap::value_parser!(u32).range(1..=i64::from(WEIGHT_MAX)))
        .help(format!("a number from 1 to {WEIGHT_MAX}"));
    command.subcommand_required(true).arg_required_else_help(true).subcommands([
        Command::new("list").about("The targets by group").args([name(), json()]),
        Command::new("add").about("Add a target").args([target, group(), name()]),
        Command::new("weight")
            .about("Change the weight of a target: its share of the flows, in proportion to the weights of the others")
            .args([named.clone(), weight, group(), name()]),
        Command::new("remove").about("Remove a target").args([named, group(), name()]),
    ])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (word, given) = matches.subcommand().expect("clap requires a subcommand");
    let text = |id: &str| given.get_one::<String>(id).cloned().expect("it is required or has a default");
    match word {
        "add" => {
            let target = text("target").parse().map_err(|error| user_error(&error))?;
            ask(given, &ControlRequest::AddTarget { group: text("group"), target })?;
        }
        "weight" => {
            let weight = *given.get_one::<u32>("weight").expect("clap requires the weight");
            ask(given, &ControlRequest::SetWeight { group: text("group"), name: text("target"), weight })?;
        }
        "remove" => {
            ask(given, &ControlRequest::RemoveTarget { group: text("group"), name: text("target") })?;
        }
        _ => {
            let rows = ask(given, &ControlRequest::Targets)?;
            let mut out = io::stdout().lock();
            if given.get_flag("json") {
                writeln!(out, "{rows:#}")?;
                return Ok(Exit::Pass);
            }
            for row in rows.as_array().into_iter().flatten() {
                let word = |name: &str| row[name].as_str().unwrap_or_default();
                writeln!(out, "{:<16} {:<40} mark {}", word("group"), word("target"), row["mark"])?;
            }
        }
    }
    Ok(Exit::Pass)
}
