//! `fathom run`: runs a plan file.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use fathom_engine::TestKind;
use fathom_model::{TestPlan, ValueKind, units::Nanos};

use super::measurement::{self, KeepResult};
use fathom_run::{
    execute,
    exit::{Exit, UserError},
    files, inventory, registry,
};

pub(super) fn define(command: Command) -> Command {
    let file = Arg::new("file")
        .value_name("PLAN")
        .required(true)
        .value_parser(clap::value_parser!(PathBuf))
        .help("a plan in TOML; `--plan` on any command prints one");
    command
        .arg(file)
        .arg(measurement::prove())
        .args(measurement::arguments())
        .args(measurement::inventory_arguments())
        .after_help("Examples:\n  fathom run plans/latency.toml\n  fathom run plans/rack.toml --hosts hosts.toml")
}

/// The maximum size of a plan, enough for thousands of tests.
const PLAN_MAX: u64 = 4 << 20;

/// Finds the files that a test names. Files next to the plan take precedence over those in the current folder.
fn find_files(test: &mut TestPlan, folder: &Path) {
    // An unknown kind is reported when the plan is checked.
    let options = registry::kind(&test.kind).map(TestKind::options).unwrap_or_default();
    for option in options.iter().filter(|option| option.value == ValueKind::File) {
        let beside = test.options.text(option.name).map(|name| folder.join(name)).filter(|path| path.is_file());
        if let Some(path) = beside.as_deref().and_then(Path::to_str) {
            test.options.set(option.name, path);
        }
    }
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let path = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let text = files::read_text(path, PLAN_MAX).map_err(|error| UserError::from_error(Exit::Usage, &error))?;
    let mut plan = execute::read_plan(&text).map_err(|error| {
        let lines = error.to_string();
        let mut lines = lines.lines();
        let what = format!("{}: {}", path.display(), lines.next().unwrap_or("not a plan"));
        lines.fold(UserError::new(Exit::Usage, what), |user_error, line| user_error.with_line("", line))
    })?;
    if let Some(rounds) = matches.get_one::<u32>("rounds") {
        plan.rounds = *rounds;
    }
    if let Some(width) = matches.get_one::<String>("until-ci") {
        plan.until_ci = Some(width.clone());
    }
    plan.prove |= measurement::is_proof_asked(matches);
    if let Some(seed) = matches.get_one::<u64>("seed") {
        plan.seed = *seed;
    }
    for test in &mut plan.tests {
        find_files(test, path.parent().unwrap_or(Path::new("")));
        if matches.contains_id("warmup") {
            test.warmup = measurement::duration_option(matches, "warmup", Nanos::ZERO)?.exact();
        }
        if matches.contains_id("duration") {
            test.duration = measurement::round_duration(matches, Nanos::ZERO, plan.rounds)?.exact();
        }
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    inventory::resolve(&mut plan, matches.get_one::<PathBuf>("hosts").map(PathBuf::as_path), folder)?;
    measurement::complete_hosts(plan.hosts.values_mut(), matches)?;
    measurement::add_promises(&mut plan.tests, matches)?;
    measurement::run_and_report(plan, matches, KeepResult::IfRequested)
}
