//! `fathom app check`: what is wrong with scenarios.

use std::{fs, path::PathBuf};

use clap::{Arg, ArgMatches, Command};

use crate::exit::{Exit, Screen};

pub(super) fn shape(command: Command) -> Command {
    let files = Arg::new("file")
        .value_name("FILE")
        .required(true)
        .num_args(1..)
        .value_parser(clap::value_parser!(PathBuf))
        .help("scenarios");
    command.arg(files).after_help("Example:\n  fathom app check plans/shop.scenario")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    for path in matches.get_many::<PathBuf>("file").into_iter().flatten() {
        fs::read_to_string(path).map_err(|error| {
            Screen::new(Exit::Usage, format!("cannot read {}", path.display())).line("why", error.to_string())
        })?;
    }
    Ok(Exit::Pass)
}
