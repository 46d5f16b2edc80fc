//! `fathom balancer flows`: the flow rules of a balancer that runs.

use std::io::{self, Write as _};

use clap::{Arg, ArgMatches, Command};
use fathom_balancer::device::ControlRequest;

use super::{ask, json, name};
use fathom_run::exit::Exit;

pub(super) fn define(command: Command) -> Command {
    let rule = Arg::new("rule")
        .value_name("RULE")
        .required(true)
        .help("NAME,FIELD=VALUE,… such as web,priority=10,protocols=tcp,ports=80+8000-8099,group=web");
    let named = Arg::new("rule").value_name("NAME").required(true).help("name of the rule");
    command.subcommand_required(true).arg_required_else_help(true).subcommands([
        Command::new("list").about("The rules, in the order in which they are tried").args([name(), json()]),
        Command::new("set").about("Add a rule, or replace the one of its name").args([rule, name()]),
        Command::new("delete").about("Remove a rule").args([named, name()]),
    ])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (word, given) = matches.subcommand().expect("clap requires a subcommand");
    let rule = || given.get_one::<String>("rule").cloned().expect("clap requires the rule");
    match word {
        "set" => drop(ask(given, &ControlRequest::SetFlow(rule()))?),
        "delete" => drop(ask(given, &ControlRequest::RemoveFlow(rule()))?),
        _ => {
            let rules = ask(given, &ControlRequest::Flows)?;
            let mut out = io::stdout().lock();
            if given.get_flag("json") {
                writeln!(out, "{rules:#}")?;
                return Ok(Exit::Pass);
            }
            for rule in rules.as_array().into_iter().flatten() {
                let word = |name: &str| rule[name].as_str().unwrap_or_default();
                writeln!(out, "{:<16} priority {:<6} group {}", word("name"), rule["priority"], word("group"))?;
            }
        }
    }
    Ok(Exit::Pass)
}
