//! `fathom path`: the same work on two paths in turn, directly and through a device, and what the device costs.
//!
//! It only makes a plan: the paths, the comparisons and their tests. Rounds, pairs and words are those of `run` and `analyze`.

mod sweep;
mod ways;

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_lab::device;
use fathom_model::{
    ComparisonPlan, DeviceCommands, Layer, Settings, TestPlan, TrialTimes, plan::SearchPlan, units::Nanos,
};

use super::{
    evaluate, find_limit,
    layer::{self, LayerCommand},
    measurement::{self, KeepResult, TestHosts},
};
use crate::options;
use fathom_run::{
    execute::DeviceMap,
    exit::{Exit, UserError},
    registry,
};
use sweep::{Swept, sweep_points};
use ways::{Ways, ways};

const EXAMPLES: &str = "\
Examples:
  fathom path --device nft:1000                what a filter of 1000 rules costs: stream, rr, datagrams, http
  fathom path tcp --device router --test rr --rounds 10
  fathom path udp --device policer:5k --rate 10kpps
  fathom path udp --device policer:5k --sweep rate=1kpps,2kpps,5kpps,10kpps
  fathom path udp --device policer:5k --find-limit 'lost<0.1%'
  fathom path tcp --device router --sweep flows=1,2,4,8
  fathom path tcp --device balancer --sweep queues=1,2,4 --flows 16 --source 198.18.16.0/24
  fathom path tcp --direct 10.0.1.2 --via 10.0.2.2 --key KEY
                                               two addresses of a host that runs `fathom serve`
  fathom path http --direct http://10.0.1.2/ --via http://10.0.9.1/ --allow 10.0.0.0/16
  fathom path tcp --device router --set-on dut --sweep rules=1,500,2000 --set './rules.sh {rules}'
  fathom path tcp --direct 10.0.1.2 --via 10.0.9.1 --key KEY --device-counters './lb.sh counters'";

/// An even number, so that each path is the first one as often as the last one.
const ROUNDS: u32 = 6;
const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_millis(500), duration: Nanos::from_secs(1) };
/// Several kinds share the time that one of them has.
const TIMES_OF_SET: TrialTimes = TrialTimes { warmup: Nanos::from_millis(300), duration: Nanos::from_millis(500) };

/// The layers whose work a path can be given.
const LAYERS: [&LayerCommand; 4] = [&layer::HTTP, &layer::TCP, &layer::UDP, &layer::PACKET];

/// A kind with its options, compared on all paths.
struct Work {
    name: String,
    kind: &'static str,
    options: Settings,
    times: TrialTimes,
}

pub(super) fn define(command: Command) -> Command {
    let of_layer = |layer: &&LayerCommand| {
        let word = layer.layer().command();
        let about = format!("Compare paths by the tests of `fathom {word}`");
        let command = layer.define_work(Command::new(word).about(about)).args(limit_arguments());
        let command = command.args(arguments()).mut_arg(find_limit::OBJECTIVE, |limit| limit.conflicts_with("sweep"));
        super::help::with_help_layout(command)
    };
    let users = Command::new(Layer::App.command())
        .about("Compare paths by users that follow a scenario")
        .arg(Arg::new("script").long("script").value_name("FILE").required(true).help("the scenario"))
        .args(arguments());
    command
        .args(arguments())
        .subcommands(LAYERS.iter().map(of_layer).chain([super::help::with_help_layout(users)]))
        .args_conflicts_with_subcommands(true)
        .after_help(EXAMPLES)
}

/// The options of a search. The short help is one screen.
fn limit_arguments() -> impl Iterator<Item = Arg> {
    find_limit::arguments().into_iter().map(|option| {
        let is_rare = option.get_id() != find_limit::OBJECTIVE;
        option.hide_short_help(is_rare)
    })
}

fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Paths")
    };
    let of_device = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Device under test")
    };
    let mut arguments = vec![
        text("direct", "WHERE", "the target on the path without the device: an address, or a URL for http")
            .requires("via"),
        text("via", "WHERE", "the target on the path through the device").requires("direct"),
        text(
            "sweep",
            "NAME=VALUES",
            "compare at each value, in random order: flows=1,2,4 or rules=0..2000:500; NAME is an option of the test, or stands in --set, or is sources, or queues of a balancer",
        ),
        of_device("set", "COMMAND", "sets {NAME} of --sweep on the device before its trials; `sh -c` runs it")
            .requires("sweep"),
        of_device(
            "set-on",
            "HOST",
            "the host of the lab on which the commands of the device run, such as dut [default: this machine]",
        ),
        of_device("device-start", "COMMAND", "starts the device before the first trial"),
        of_device("device-stop", "COMMAND", "stops the device at the end, whatever happens").requires("device-start"),
        of_device(
            "device-counters",
            "COMMAND",
            "prints the counters of the device as one JSON object of whole numbers",
        ),
        of_device(
            "device-map",
            "MAP",
            "a map of the device's eBPF programs on this machine that counts: a pinned path, an id or a name; MAP:1=dropped,2=passed names its keys; repeatable",
        )
        .action(ArgAction::Append)
        .value_parser(|text: &str| text.parse::<DeviceMap>().map(|_| text.to_owned())),
        of_device("device-host", "HOST", "the host of --hosts that is the device: its counters are read")
            .requires("hosts"),
    ];
    arguments.extend(measurement::arguments());
    arguments.extend(measurement::hosts_arguments());
    arguments
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let Some((word, given)) = matches.subcommand() else {
        let times = measurement::trial_times(matches, TIMES_OF_SET, ROUNDS)?;
        return compare(&set(times), matches, None, &|ends| ends);
    };
    let search = find_limit::search(given);
    let (times, rounds) = if search.is_some() { (find_limit::TIMES, 1) } else { (TIMES, ROUNDS) };
    let times = measurement::trial_times(given, times, rounds)?;
    let Some(layer) = LAYERS.into_iter().find(|layer| layer.layer().command() == word) else {
        return compare(&[users(given, times)?], given, Some(Layer::App), &|ends| ends);
    };
    let (word, kind, ordered) = layer.work(given)?;
    let options = layer::without_foreign_direction(kind, options::settings(given, &layer.listed_kinds()));
    let work = Work { name: word.to_owned(), kind: kind.name(), options, times };
    compare(&[work], given, Some(layer.layer()), &ordered)
}

/// The kinds of work that tell most about a device: requests, bytes, answers and packets.
fn set(times: TrialTimes) -> Vec<Work> {
    let work = |name: &str, kind: &'static str, options: &[(&str, &str)]| Work {
        name: name.to_owned(),
        kind,
        options: options.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text)),
        times,
    };
    vec![
        work("http", "http_closed", &[("connections", "32")]),
        work("stream", "tcp_stream", &[]),
        work("rr", "tcp_rr", &[]),
        // Far below what a path of this kind carries, so that what is missing was lost by the device.
        work("datagrams", "udp_stream", &[("rate", "5kpps")]),
    ]
}

/// The kind of scripted users.
const USERS: &str = "app_scenario";

/// The users of a scenario. Its times are those that it names, unless the command line has others.
fn users(matches: &ArgMatches, times: TrialTimes) -> anyhow::Result<Work> {
    let file = matches.get_one::<String>("script").expect("clap requires the file");
    let planned = evaluate::with_script(file, TestPlan::new(USERS, times, ""), matches)?;
    let span = |text: &str| text.parse::<Nanos>().expect("a plan has exact spans");
    let times = TrialTimes { warmup: span(&planned.warmup), duration: span(&planned.duration) };
    Ok(Work { name: "users".to_owned(), kind: USERS, options: planned.options, times })
}

/// Builds the plan of a comparison and runs it.
fn compare(
    all: &[Work],
    matches: &ArgMatches,
    layer: Option<Layer>,
    ordered: &dyn Fn(TestHosts) -> TestHosts,
) -> anyhow::Result<Exit> {
    let ways = ways(matches, layer)?;
    let mut ways = Ways { ends: ordered(ways.ends), ..ways };
    if ways.urls.is_some() {
        let mut kinds = all.iter().filter_map(|work| registry::kind(work.kind).ok());
        kinds.try_for_each(|kind| layer::refuse_responder_options(kind, matches))?;
    }
    if let Some(search) = find_limit::search(matches) {
        return find_limits(&all[0], &search, ways, matches);
    }
    let (mut comparisons, mut tests) = (Vec::new(), Vec::new());
    let through = ways.device.as_ref().map(|device| (device, &ways.ends));
    for work in all {
        for point in sweep_points(matches, work, layer, through)? {
            let comparison = point.comparison(&work.name);
            tests.extend(tests_of(work, &point, &comparison, &ways));
            comparisons.push(comparison);
        }
    }
    measurement::add_promises(&mut tests, matches)?;
    let what = ways.what.clone();
    let n_queues = comparisons.iter().filter_map(n_queues_at).max();
    if let Some(n_queues) = n_queues {
        ways.give_queues(n_queues)?;
    }
    let names: Vec<&str> = all.iter().map(|work| work.name.as_str()).collect();
    let title = if layer.is_some() { format!("{} {what}", names.join(", ")) } else { format!("Paths {what}") };
    let paths = ways.paths;
    let mut plan = measurement::plan(title, ROUNDS, ways.ends, tests, matches);
    plan.paths = paths;
    plan.comparisons = comparisons;
    plan.device = device_commands(matches);
    if n_queues.is_some() {
        plan.device.on = Some(device::HOST.to_owned());
    }
    measurement::run_and_report(plan, matches, KeepResult::IfRequested)
}

/// Searches for the limit of each path, one after the other: a search decides by itself what it tries.
fn find_limits(work: &Work, search: &SearchPlan, ways: Ways, matches: &ArgMatches) -> anyhow::Result<Exit> {
    let point = Swept::only(&work.options);
    let comparison = point.comparison(&work.name);
    let of_path = |test: TestPlan| TestPlan { search: Some(search.clone()), comparison: None, ..test };
    let mut tests: Vec<TestPlan> = tests_of(work, &point, &comparison, &ways).into_iter().map(of_path).collect();
    tests.truncate(ways.paths.len());
    measurement::add_promises(&mut tests, matches)?;
    let title = format!("limits of {} {}", work.name, ways.what);
    let paths = ways.paths;
    let mut plan = measurement::plan(title, 1, ways.ends, tests, matches);
    plan.paths = paths;
    plan.device = device_commands(matches);
    measurement::run_and_report(plan, matches, KeepResult::IfRequested)
}

/// Returns the tests of a comparison: the first path, each other one, and the first one again for the noise.
fn tests_of(work: &Work, point: &Swept, comparison: &ComparisonPlan, ways: &Ways) -> Vec<TestPlan> {
    let test = |path: usize, again: &str| {
        let name = &ways.paths[path].name;
        let url = ways.urls.as_ref().map(|urls| urls[path].clone());
        let options = url.iter().fold(point.options.clone(), |options, url| options.with("url", url.clone()));
        TestPlan {
            name: format!("{} {name}{again}", comparison.name),
            to: url.is_none().then(|| ways.ends.to().to_owned()),
            options,
            path: Some(name.clone()),
            comparison: Some(comparison.name.clone()),
            ..ways.ends.test(work.kind, work.times)
        }
    };
    // The other path stands between the two tests of the first one: it is next to both in every round.
    vec![test(0, ""), test(1, ""), test(0, " again")]
}

/// Returns the number of queues at a point of their sweep.
fn n_queues_at(comparison: &ComparisonPlan) -> Option<u16> {
    let at = comparison.at.as_ref().filter(|at| at.parameter == sweep::QUEUES)?;
    // A command of the user may set something else of this name.
    let is_own = comparison.set.as_ref().is_some_and(|set| set.ends_with(&format!(" balancer queues {}", at.value)));
    at.value.parse().ok().filter(|_| is_own)
}

fn device_commands(matches: &ArgMatches) -> DeviceCommands {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    DeviceCommands {
        on: text("set-on"),
        start: text("device-start"),
        stop: text("device-stop"),
        counters: text("device-counters"),
        maps: matches.get_many::<String>("device-map").unwrap_or_default().cloned().collect(),
    }
}

/// Returns the error of an option of this command.
fn usage(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Returns true if a kind has an option.
fn has_option(kind: &str, name: &str) -> bool {
    registry::kind(kind).is_ok_and(|kind| kind.options().iter().any(|option| option.name == name))
}
