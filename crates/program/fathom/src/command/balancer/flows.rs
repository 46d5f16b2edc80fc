//! `fathom balancer flows`: the flow rules of a balancer that runs.

use std::{
    fs,
    io::{self, Write as _},
};

use clap::{Arg, ArgMatches, Command};
use fathom_balancer::{device::ControlRequest, flows::FlowRule};

use super::{ask, json, name};
use fathom_run::exit::{Exit, UserError};

pub(super) fn define(command: Command) -> Command {
    let rule = Arg::new("rule")
        .value_name("RULE")
        .required(true)
        .help("NAME,FIELD=VALUE,… such as web,priority=10,protocols=tcp,ports=80+8000-8099,group=web");
    let file = Arg::new("file")
        .value_name("FILE")
        .required(true)
        .help("a rule on each line, as for `set`; `-` reads the standard input; empty lines and those that begin with # are skipped");
    let named = Arg::new("rule").value_name("NAME").required(true).help("name of the rule");
    command.subcommand_required(true).arg_required_else_help(true).subcommands([
        Command::new("list").about("The rules, in the order in which they are tried").args([name(), json()]),
        Command::new("set").about("Add a rule, or replace the one of its name").args([rule, name()]),
        Command::new("load").about("Replace all rules at once by those of a file").args([file, name()]),
        Command::new("delete").about("Remove a rule").args([named, name()]),
    ])
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (word, given) = matches.subcommand().expect("clap requires a subcommand");
    let rule = || given.get_one::<String>("rule").cloned().expect("clap requires the rule");
    match word {
        "set" => drop(ask(given, &ControlRequest::SetFlow(rule()))?),
        "load" => {
            let file = given.get_one::<String>("file").expect("clap requires the file");
            drop(ask(given, &ControlRequest::SetFlows(rules_of(file)?))?);
        }
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

/// Reads a file of rules, and checks each of them, so that an error names its line.
fn rules_of(file: &str) -> Result<Vec<String>, UserError> {
    let text = if file == "-" { io::read_to_string(io::stdin()) } else { fs::read_to_string(file) };
    let shown = if file == "-" { "the standard input" } else { file };
    let unreadable = |error: io::Error| UserError::new(Exit::Preflight, format!("cannot read {shown}: {error}"));
    let text = text.map_err(unreadable)?;
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let checked = lines.map(|(number, line)| match line.parse::<FlowRule>() {
        Ok(_) => Ok(line.to_owned()),
        Err(error) => Err(UserError::new(Exit::Usage, format!("{shown}, line {number}: {error}"))),
    });
    checked.collect()
}
