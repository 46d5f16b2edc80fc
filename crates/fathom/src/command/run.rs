//! `fathom run`: a plan file.

use std::{fs, path::PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::measuring::{self, Keep};
use crate::{
    execute,
    exit::{Exit, Screen},
};

pub(super) fn shape(command: Command) -> Command {
    let file = Arg::new("file")
        .value_name("PLAN")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .help("a plan in TOML; `--plan` on any command prints one");
    command.arg(file).args(measuring::arguments()).after_help("Example:\n  fathom run plans/latency.toml")
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let text = fs::read_to_string(path).map_err(|error| {
        Screen::new(Exit::Usage, format!("cannot read {}", path.display())).line("why", error.to_string())
    })?;
    let mut plan = execute::read_plan(&text).map_err(|error| {
        let lines = error.to_string();
        let mut lines = lines.lines();
        let what = format!("{}: {}", path.display(), lines.next().unwrap_or("not a plan"));
        lines.fold(Screen::new(Exit::Usage, what), |screen, line| screen.line("", line))
    })?;
    if let Some(rounds) = matches.get_one::<u32>("rounds") {
        plan.rounds = *rounds;
    }
    if let Some(width) = matches.get_one::<String>("until-ci") {
        plan.until_ci = Some(width.clone());
    }
    if let Some(seed) = matches.get_one::<u64>("seed") {
        plan.seed = *seed;
    }
    for test in &mut plan.tests {
        for (name, place) in [("warmup", &mut test.warmup), ("duration", &mut test.duration)] {
            if matches.get_one::<String>(name).is_some() {
                *place = measuring::span(matches, name, fathom_model::units::Nanos::ZERO)?.exact();
            }
        }
    }
    measuring::promise(&mut plan.tests, matches)?;
    measuring::carry_out(plan, matches, Keep::WhenAsked)
}
