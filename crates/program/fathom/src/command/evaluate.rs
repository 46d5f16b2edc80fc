//! `fathom evaluate`: tests every layer, from top to bottom.

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_engine::{EvaluationRow, TestKind};
use fathom_model::{Layer, Settings, TestPlan, TrialTimes, units::Nanos};
use fathom_scenario::execution::LoadedScenario;
use fathom_sys::policy::Policy;

use super::{
    calibrate, cloud,
    evaluation_length::EvaluationLength,
    many_hosts,
    measurement::{self, KeepResult, NamedSides, TestHosts},
};
use fathom_run::{
    exit::{Exit, UserError, engine_error},
    registry,
};

const EXAMPLES: &str = "\
Examples:
  fathom evaluate                                  in a lab of two hosts on this machine
  fathom evaluate 10.0.0.2 --key KEY               from this machine to a `fathom serve`
  fathom evaluate --hosts rack.toml --from b1 --to sut      between two hosts of an inventory
  fathom evaluate --device router                  through the kernel's router, on a core of its own
  fathom evaluate --quick --expect 10Gbit --json   short, with a promise, for a machine to read
  fathom evaluate --prove                          also repeats rows with one option changed, to prove their causes
  fathom evaluate --suite cloud --lab star:9       as providers of clouds test: one host, loaded by eight companions
  fathom evaluate --script shop.scenario           with these users as the top row";

pub(super) fn define(command: Command) -> Command {
    let target =
        Arg::new("target").value_name("TARGET").help("a host that runs `fathom serve`; without it, a lab is built");
    let quick = Arg::new("quick")
        .long("quick")
        .help("three short rounds: wide intervals, under 10 s")
        .action(ArgAction::SetTrue);
    let script = Arg::new("script")
        .long("script")
        .value_name("FILE")
        .help("scenario of the top row; default: three steps without a pause");
    let suite = Arg::new("suite")
        .long("suite")
        .value_name("SUITE")
        .default_value(LAYERS)
        .value_parser([LAYERS, cloud::NAME])
        .help("layers: every layer between two hosts; cloud: bandwidth, packet rate and transactions of a tested host under many companions");
    let port = Arg::new("port")
        .long("port")
        .value_name("PORT")
        .help("port on which the target answers in the rows of TCP, UDP and HTTP, for firewalls; default: the kernel chooses")
        .value_parser(clap::value_parser!(u16).range(1..));
    command
        .arg(target)
        .arg(suite)
        .arg(port)
        .arg(quick)
        .arg(script)
        .arg(measurement::prove())
        .args(many_hosts::arguments())
        .args(measurement::arguments())
        .args(measurement::hosts_arguments())
        .after_help(EXAMPLES)
}

/// The option of kinds whose other side listens on a port.
const PORT: &str = "port";

/// The name of the suite of all layers.
const LAYERS: &str = "layers";

const FULL: EvaluationLength = EvaluationLength {
    rounds: 5,
    times: TrialTimes { warmup: Nanos::from_millis(500), duration: Nanos::from_millis(600) },
};
const QUICK: EvaluationLength = EvaluationLength {
    rounds: 3,
    times: TrialTimes { warmup: Nanos::from_millis(120), duration: Nanos::from_millis(150) },
};

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let device = matches.get_one::<String>("device").map(String::as_str);
    let target = matches.get_one::<String>("target");
    let of_inventory = measurement::hosts_of_inventory(matches, NamedSides::Both)?;
    let title_of_inventory = of_inventory.as_ref().map(|ends| format!("Evaluation of {}", ends.to()));
    let ends = match (of_inventory, target) {
        (Some(_), Some(_)) => {
            let user_error = UserError::new(Exit::Usage, "either a target or --hosts, not both");
            return Err(user_error.with_line("use", "--hosts FILE --from HOST --to HOST").into());
        }
        (Some(ends), None) => ends,
        (None, Some(_)) if device.is_some() => {
            return Err(UserError::new(Exit::Usage, "--device needs --lab; it cannot be used with a target").into());
        }
        (None, Some(target)) => measurement::hosts_at_target(target, matches)?,
        (None, None) => measurement::pair_in_lab(measurement::lab_option(matches).unwrap_or("pair"), device)?,
    };
    let ends = many_hosts::chosen(ends, matches)?;
    if matches.get_one::<String>("suite").is_some_and(|suite| suite == cloud::NAME) {
        if matches.contains_id(PORT) {
            return Err(UserError::new(Exit::Usage, "--port has no effect on --suite cloud").into());
        }
        return cloud::run(ends, matches);
    }
    let pace = if matches.get_flag("quick") { QUICK } else { FULL };
    let mut tests = tests(&ends, &pace, matches)?;
    measurement::add_promises(&mut tests, matches)?;
    let title = title_of_inventory.unwrap_or_else(|| match (target, device) {
        (Some(target), _) => format!("Evaluation of {target}"),
        (None, Some(device)) => format!("Evaluation of {device}"),
        (None, None) => "Evaluation of this machine".to_owned(),
    });
    let plan = measurement::plan(title, pace.rounds, ends, tests, matches);
    if !matches.get_flag("plan") && calibrate::is_missing(matches.get_flag("quick")) {
        measurement::check_before_run(&plan, matches, KeepResult::Always)?;
        calibrate::calibrate_first()?;
    }
    measurement::run_and_report(plan, matches, KeepResult::Always)
}

fn tests(ends: &TestHosts, pace: &EvaluationLength, matches: &ArgMatches) -> anyhow::Result<Vec<TestPlan>> {
    let times = measurement::trial_times(matches, pace.times, pace.rounds)?;
    let script = matches.get_one::<String>("script");
    // Probes, frames on one link, and programs on a device run between two hosts.
    let pair = ends.clone().of_one_pair();
    let port = matches.get_one::<u16>("port").map(u16::to_string);
    let row = |kind: &dyn TestKind, row: &EvaluationRow| {
        let port = port.as_ref().filter(|_| kind.options().iter().any(|option| option.name == PORT));
        let options = row.options.iter().copied().chain(port.map(|port| (PORT, port.as_str())));
        let is_of_pair = row.is_optional || matches!(kind.layer(), Layer::Path | Layer::Frames);
        let ends = if is_of_pair { &pair } else { ends };
        TestPlan {
            optional: row.is_optional,
            name: row.name.to_owned(),
            to: Some(ends.to().to_owned()),
            options: options.fold(Settings::default(), |settings, (name, text)| settings.with(name, text)),
            ..ends.test(kind.name(), times)
        }
    };
    let rows = registry::KINDS.iter().flat_map(|kind| kind.evaluation().iter().map(|of_kind| row(*kind, of_kind)));
    rows.map(|row| match script {
        Some(file) if row.options.text("script").is_some() => with_script(file, row, matches),
        _ => Ok(row),
    })
    .collect()
}

/// Returns the row for the user's own script. It contacts the server that it names, or the target like the other rows.
///
/// The script sets its own duration, because its users can think for longer than a round of the other rows.
pub(super) fn with_script(file: &str, row: TestPlan, matches: &ArgMatches) -> anyhow::Result<TestPlan> {
    let settings = Settings::default().with("file", file);
    let script = LoadedScenario::of(&settings, &Policy::anything()).map_err(|error| engine_error(&error))?;
    let urls = script.urls(None).map_err(|error| engine_error(&error))?;
    let said = |name: &str| matches.contains_id(name) && matches.get_one::<String>(name).is_some();
    let (warmup, duration) = match script.times().filter(|_| !said("duration")) {
        Some(times) => (times.warmup.exact(), times.duration.exact()),
        None => (row.warmup.clone(), row.duration.clone()),
    };
    let row = TestPlan { warmup, duration, ..row };
    if urls.is_empty() {
        // The responder reads the number of users from the text. Files that the text names are read here, relative to its file.
        return Ok(TestPlan { options: settings.with("script", script.text), ..row });
    }
    let lines: Vec<String> = urls.iter().map(ToString::to_string).collect();
    Ok(TestPlan { to: None, options: settings.with("url", lines.join("\n")), ..row })
}
