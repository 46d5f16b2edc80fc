//! `fathom app run`: runs a script against a target.

use std::path::Path;

use clap::{Arg, ArgMatches, Command};
use fathom_model::{TestPlan, TrialTimes, units::Nanos};

use crate::{
    command::measurement::{self, KeepResult},
    options,
};
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

/// The maximum length of the warm-up, and the measured time of a round.
const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_secs(1), duration: Nanos::from_secs(10) };
/// One round by default, because a script starts again and prints its output in each round.
const ROUNDS: u32 = 1;
/// Options of the kinds that the command expresses in another way.
const REPLACED_OPTIONS: &[&str] = &["url", "script", "file", "args", "script-allow", "lenient"];

const EXAMPLES: &str = "\
Examples:
  fathom app run shop.scenario          # base, users and time from the scenario
  fathom app run shop.scenario http://127.0.0.1:8080/ --users 200 --ramp 10s --duration 1min
  fathom app run login.lua http://127.0.0.1:8080/ --connections 100 --duration 30s
  fathom app run pipeline.lua http://127.0.0.1:8080/ -- 16
  fathom as wrk -t2 -c100 -d30s -s login.lua http://127.0.0.1:8080/      # the same script, wrk's text";

/// Returns the kinds that run scripts.
fn kinds() -> Vec<options::NamedKind> {
    let named = [("scenarios", "app_scenario"), ("Lua", "app_lua")];
    named.into_iter().filter_map(|(word, kind)| Some((word, registry::kind(kind).ok()?))).collect()
}

pub(super) fn define(command: Command) -> Command {
    let text =
        |name: &'static str, value: &'static str, help: &'static str| Arg::new(name).value_name(value).help(help);
    let is_own = |option: &Arg| !REPLACED_OPTIONS.contains(&option.get_id().as_str());
    command
        .arg(text("script", "SCRIPT", "a scenario, or a script for wrk in Lua (.lua)").required(true))
        .arg(text("url", "URL", "any http:// or https:// URL; a scenario may have it as its base"))
        .arg(text("words", "ARGS", "words for the script").num_args(0..).last(true))
        .args(options::arguments(&kinds()).into_iter().filter(is_own))
        .args(measurement::hosts_arguments())
        .args(crate::command::many_hosts::arguments())
        .args(measurement::arguments())
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let given = |name: &str| matches.get_one::<String>(name).cloned();
    let script = given("script").expect("clap requires the script");
    if Path::new(&script).extension().is_none_or(|extension| extension != "lua") {
        return super::scenario::run(matches, &script);
    }
    let Some(url) = given("url") else {
        return Err(UserError::new(Exit::Usage, format!("{script} needs a URL"))
            .with_line("use", format!("fathom app run {script} http://127.0.0.1:8080/"))
            .into());
    };
    let words = matches.get_many::<String>("words").into_iter().flatten().map(String::as_str);
    let words =
        shlex::try_join(words).map_err(|error| UserError::new(Exit::Usage, format!("the words behind --: {error}")))?;
    let allowed = measurement::allowed(matches)?;
    let kind = registry::kind("app_lua")?;
    let settings = options::settings(matches, &[kind])
        .with("script", script.clone())
        .with("url", url.clone())
        .with("args", words)
        .with(fathom_lua::ALLOW, allowed.list())
        .complete(kind.options())
        .map_err(|error| UserError::new(Exit::Usage, format!("app run: {error}")))?;
    let ends = measurement::initiators(matches)?;
    if ends.are_elsewhere() {
        let text = format!("{script}: a Lua script runs on this machine or in a lab, not on other hosts");
        return Err(UserError::new(Exit::Usage, text).with_line("use", "a scenario: fathom app --help").into());
    }
    let times = measurement::trial_times(matches, TIMES, ROUNDS)?;
    let mut tests = vec![TestPlan { options: settings, ..ends.test(kind.name(), times) }];
    measurement::add_promises(&mut tests, matches)?;
    let title = format!("{script} {url}");
    measurement::run_and_report(
        measurement::plan(title, ROUNDS, ends, tests, matches),
        matches,
        KeepResult::IfRequested,
    )
}
