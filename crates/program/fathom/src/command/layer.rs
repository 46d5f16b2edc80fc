//! `fathom http | tcp | udp | packet`: one test of one layer.

use clap::{Arg, ArgAction, ArgMatches, Command, builder::PossibleValue, parser::ValueSource};
use fathom_engine::{CommandDoc, TestKind, pace::Profile};
use fathom_model::{Layer, Plan, Settings, TestPlan, TrialTimes, units::Nanos};

use super::{
    benchmark, direction, find_limit, many_hosts,
    measurement::{self, KeepResult, NamedSides, TestHosts},
    rfc6349::{self, WindowSweep},
    scan,
};
use crate::options;
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

/// The maximum length of the warm-up, and the measured time of a round.
const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_secs(1), duration: Nanos::from_secs(2) };
/// A number of bytes ends a round; this time only limits it.
const BYTES_MAX: Nanos = Nanos::from_secs(60);
/// The value of `--protocol` for a fathom responder.
const FATHOM_PROTOCOL: &str = "fathom";
/// The option that says what sends the requests of a test, and its default.
const ENGINE: &str = "engine";
const SOCKETS: &str = "sockets";
/// The option of a kind that names another tool's server.
const SERVER: &str = "host";
/// The option that names a device of this host on which foreign packets are counted.
const RECEIVE: &str = "receive";
/// Options that only the long help of the layers below http has.
const RARE: [&str; 3] = ["connections", "ports", "once"];
/// As many rounds as make an interval narrow.
const ROUNDS: u32 = 5;

/// A command that measures one layer.
pub(super) struct LayerCommand {
    pub(super) about: &'static str,
    /// The kinds of the program.
    kinds: fn() -> &'static [&'static dyn TestKind],
    /// The layer of its kinds.
    layer: Layer,
    /// How titles of runs begin.
    title: &'static str,
    /// The argument after the command: its name and its description.
    target: (&'static str, &'static str),
    examples: &'static str,
}

/// The test that a command line asks for.
struct ChosenWork {
    word: &'static str,
    kind: &'static dyn TestKind,
    ends: TestHosts,
    /// The target, if it is a URL or an address outside.
    url: Option<String>,
    settings: Settings,
}

pub(super) const HTTP: LayerCommand = LayerCommand {
    kinds: || &registry::KINDS,
    layer: Layer::Http,
    title: "HTTP",
    about: "Request load: N connections that wait for their answers (closed), or a rate of requests (open)",
    target: ("URL", "an http:// or https:// URL; without it, the responder of a --lab"),
    examples: "\
Examples:
  fathom http http://127.0.0.1:8080/ --connections 100 --duration 10s
  fathom http http://127.0.0.1:8080/ --rate 20k --arrivals poisson
  fathom http http://127.0.0.1:8080/ --profile 0-20k:30s,20k:1min
  fathom http http://127.0.0.1:8080/ --find-limit 'p99<20ms, errors<0.1%'
  fathom http http://192.0.2.7/ --allow 192.0.2.7
  fathom http --lab pair",
};

pub(super) const TCP: LayerCommand = LayerCommand {
    kinds: || &registry::KINDS,
    layer: Layer::Tcp,
    title: "TCP",
    about: "TCP: streams, request/response, connect and close, latency under load, RFC 6349",
    target: ("TARGET", "a host that runs `fathom serve`, or 127.0.0.1 or ::1; without it, the second host of a --lab"),
    examples: "\
Examples:
  fathom tcp 10.0.0.2 --key KEY --flows 4
  fathom tcp --lab pair --test rr-open --rate 20k --arrivals poisson --flows 64
  fathom tcp 192.0.2.7 --protocol iperf3 --direction down --allow 192.0.2.7
  fathom tcp 192.0.2.7 --protocol netperf --test rr --flows 300
  fathom tcp 127.0.0.1 --test crr --duration 5s
  fathom tcp 10.0.0.2 --key KEY --test loaded --flows 4
  fathom tcp --hosts rack.toml --from b1 --to sut
  fathom tcp 10.0.0.9 --test continuity --flows 100 --at '4s ssh lb deactivate t2' --allow 10.0.0.9
  fathom tcp 10.0.0.2 --key KEY --test rfc6349 --bandwidth 100Mbit",
};

pub(super) const UDP: LayerCommand = LayerCommand {
    kinds: || &registry::KINDS,
    layer: Layer::Udp,
    title: "UDP",
    about: "UDP: loss, reordering, duplicates, jitter and delay of a stream up or down; request/response in datagrams",
    target: ("TARGET", "a host that runs `fathom serve`, or 127.0.0.1; without it, the second host of a --lab"),
    examples: "\
Examples:
  fathom udp 10.0.0.2 --key KEY --rate 1G --size 1400
  fathom udp --lab pair --rate 200M --traffic bursts
  fathom udp --lab pair --direction down --rate 4M --traffic frames:30:20%
  fathom udp --lab pair --mix imix --rate 50kpps --traffic poisson
  fathom udp --lab pair --offload both
  fathom udp --lab pair --test rr --flows 16
  fathom udp --lab pair --find-limit 'lost<0.1%'",
};

pub(super) const PACKET: LayerCommand = LayerCommand {
    kinds: || &registry::KINDS,
    layer: Layer::Frames,
    title: "Frames:",
    about: "Frames per second: generate, count at both ends, show where the rest was lost",
    target: ("TARGET", "a host that runs `fathom serve` on the same link; without it, the second host of a --lab"),
    examples: "\
Examples:
  fathom packet --lab pair --size 64
  fathom packet --lab pair --rate 100k --duration 5s
  fathom packet --device nft:1000 --find-limit 'lost<0.1%'
  fathom packet --lab pair --test stack-receive --end filter --rules 1000
  fathom packet --lab pair --rate 100k --arrivals poisson --flows 1000 --backend xsk
  fathom packet --lab pair --frame 'vlan 100 / ip6 / tcp 1024-65535? > 443 seq ? each'
  fathom packet --lab pair --mix imix --flows 10000
  fathom packet --receive eth1 --duration 30s
  fathom packet 10.0.0.2 --key KEY --size 1518
  fathom packet --lab pair --method throughput,loss --sizes 64,1518
  fathom packet 10.0.0.2 --key KEY --method mlrsearch --goal ndr,pdr,0.1%:2s
  fathom packet 10.0.0.2 --key KEY --method rfc2544 --conform",
};

/// A kind with its place on the command line.
type ListedKind = (CommandDoc, &'static dyn TestKind);

impl LayerCommand {
    /// The kinds of the layer that have a place on the command line, in the order of the tables of the crates.
    fn kinds(&self) -> Vec<ListedKind> {
        let of_layer = (self.kinds)().iter().filter(|kind| kind.layer() == self.layer);
        of_layer.filter_map(|kind| Some((kind.command()?, *kind))).collect()
    }

    /// The words of `--test`; the first is the default.
    fn tests(&self) -> Vec<direction::TestChoice> {
        let mut tests: Vec<direction::TestChoice> = Vec::new();
        for (doc, kind) in self.kinds().into_iter().filter(|(doc, _)| !doc.is_protocol && !doc.is_engine) {
            match tests.iter_mut().find(|(word, _)| *word == doc.word) {
                Some((_, kinds)) => kinds.push((doc.direction, kind)),
                None => tests.push((doc.word, vec![(doc.direction, kind)])),
            }
        }
        tests
    }

    /// The words of `--protocol` beside ours.
    fn protocols(&self) -> Vec<ListedKind> {
        self.kinds().into_iter().filter(|(doc, _)| doc.is_protocol).collect()
    }

    /// The words of `--engine` beside the usual one.
    fn engines(&self) -> Vec<ListedKind> {
        self.kinds().into_iter().filter(|(doc, _)| doc.is_engine).collect()
    }

    /// The layer of its kinds.
    pub(super) fn layer(&self) -> Layer {
        self.layer
    }

    /// The kinds of the layer, without their places on the command line.
    pub(super) fn listed_kinds(&self) -> Vec<&'static dyn TestKind> {
        self.kinds().into_iter().map(|(_, kind)| kind).collect()
    }

    /// The option that chooses a test, by its word.
    fn test_argument(&self) -> Arg {
        let tests = self.tests();
        let words: Vec<&str> = tests.iter().map(|(word, _)| *word).collect();
        let former = direction::former_test_words(&words).map(|word| PossibleValue::new(word).hide(true));
        let values: Vec<_> = words.iter().copied().map(PossibleValue::new).chain(former).collect();
        Arg::new("test")
            .long("test")
            .value_name("TEST")
            .default_value(words[0])
            .value_parser(values)
            .help("test to run")
    }

    /// Adds the options of the kinds and those that choose among them. A target and everything else is up to the command.
    pub(super) fn define_work(&self, command: Command) -> Command {
        // The URL or the server is the target argument. In a plan, it is an option of the test.
        let is_own = |option: &Arg| ["url", SERVER, direction::DIRECTION].iter().any(|name| option.get_id() == name);
        let kinds = self.kinds();
        let named: Vec<options::NamedKind> = kinds.iter().map(|(doc, kind)| (doc.word, *kind)).collect();
        // These are usual in other commands, and the short help is one screen.
        let is_rare = |option: &Arg| self.layer != Layer::Http && RARE.iter().any(|name| option.get_id() == name);
        let shown = |option: Arg| if is_rare(&option) { option.hide_short_help(true) } else { option };
        let options = options::arguments(&named).into_iter().filter(|option| !is_own(option)).map(shown);
        let kinds = self.listed_kinds();
        let direction = (self.layer != Layer::Http).then(|| direction::argument(&kinds));
        command.arg(self.test_argument()).args(self.engine_argument()).args(options).args(direction)
    }

    /// The option that chooses an engine, if there are several.
    fn engine_argument(&self) -> Option<Arg> {
        let others = self.engines();
        let mut words: Vec<&str> = [SOCKETS].into_iter().chain(others.iter().map(|(doc, _)| doc.word)).collect();
        words.dedup();
        let engine = Arg::new(ENGINE).long(ENGINE).value_name("WORD").default_value(SOCKETS).value_parser(words);
        let help = "sockets: the kernel's TCP; xdp: an XDP program in the driver, for more requests and connections per core; auto: xdp if it can do what the test asks for, otherwise sockets";
        (!others.is_empty()).then(|| engine.help(help).help_heading("Test"))
    }

    pub(super) fn define(&self, command: Command) -> Command {
        let target = Arg::new("target").value_name(self.target.0).help(self.target.1);
        let mut foreign: Vec<&str> = self.protocols().iter().map(|(doc, _)| doc.word).collect();
        foreign.dedup();
        let protocols: Vec<&str> = [FATHOM_PROTOCOL].into_iter().chain(foreign.iter().copied()).collect();
        let protocol = Arg::new("protocol").long("protocol").value_name("TOOL").default_value(FATHOM_PROTOCOL);
        let protocol =
            protocol.value_parser(protocols).help("the program on the target: fathom, or a server of this tool");
        let command = if foreign.is_empty() { command } else { command.arg(protocol) };
        let methods = if self.has_methods() { benchmark::arguments() } else { Vec::new() };
        self.define_work(command.arg(target))
            .args(find_limit::arguments())
            .args(scan::arguments())
            .args(event_arguments())
            .args(methods)
            .arg(measurement::prove().conflicts_with(find_limit::OBJECTIVE))
            .args(many_hosts::arguments())
            .args(measurement::arguments())
            .args(measurement::hosts_arguments())
            .after_help(self.examples)
    }

    /// Returns the chosen test for a command with its own hosts: its word, its kind, and the order of its hosts.
    ///
    /// # Errors
    /// If the test is unknown, or if it would be two tests, one for each direction.
    pub(super) fn work<'m>(
        &self,
        matches: &'m ArgMatches,
    ) -> Result<(&'static str, &'static dyn TestKind, impl Fn(TestHosts) -> TestHosts + 'm), UserError> {
        let (word, kind) = self.chosen_test(matches)?;
        let doc = kind.command().expect("a chosen kind has a word");
        direction::check_single(doc, matches)?;
        Ok((word, kind, move |ends| direction::order_hosts(ends, doc, matches)))
    }

    pub(super) fn run(&self, matches: &ArgMatches) -> anyhow::Result<Exit> {
        let work = self.chosen_work(matches)?;
        if rfc6349::is_sweep(work.kind.name(), &work.settings, matches) {
            refuse_events(matches, "--test rfc6349 without --buffer")?;
            let times = measurement::trial_times(matches, TIMES, rfc6349::ROUNDS)?;
            let ChosenWork { kind, settings: given, ends, .. } = work;
            return WindowSweep { kind: kind.name(), matches, given, ends, times }.run();
        }
        // `--method` of other layers is something else.
        let methods = || benchmark::tests(matches, work.kind, &work.settings, &work.ends);
        let plan = match self.has_methods().then(methods).transpose()?.flatten() {
            Some((title, tests)) => self.benchmark_plan(work.ends, (&title, tests), matches)?,
            None => self.rounds_plan(work, matches)?,
        };
        measurement::run_and_report(plan, matches, KeepResult::IfRequested)
    }

    /// Reads the test, its hosts and its options.
    fn chosen_work(&self, matches: &ArgMatches) -> anyhow::Result<ChosenWork> {
        let (word, kind) = self.chosen_test(matches)?;
        // Requests of http have a field `host`, which is something else.
        let names_server = self.layer != Layer::Http && has_server(kind);
        let (ends, url) = self.ends(matches, kind)?;
        let ends = many_hosts::chosen(ends, matches)?;
        let ends = direction::order_hosts(ends, kind.command().expect("a chosen kind has a word"), matches);
        let given: Vec<&dyn TestKind> = self.kinds().into_iter().map(|(_, kind)| kind).collect();
        let mut settings = without_foreign_direction(kind, options::settings(matches, &given));
        if let Some(url) = &url {
            refuse_responder_options(kind, matches)?;
            settings.set(if names_server { SERVER } else { "url" }, url.clone());
        }
        Ok(ChosenWork { word, kind, ends, url, settings })
    }

    /// The plan of a benchmarking method, whose trials are the tests.
    fn benchmark_plan(
        &self,
        ends: TestHosts,
        (title, tests): (&str, Vec<TestPlan>),
        matches: &ArgMatches,
    ) -> anyhow::Result<Plan> {
        refuse_events(matches, "--method")?;
        let mut tests = direction::add_reverse_tests(tests, matches)?;
        measurement::add_promises(&mut tests, matches)?;
        Ok(measurement::plan(format!("{} {title}", self.title), 1, ends, tests, matches))
    }

    /// The plan of a test in rounds, at each value of a scan, or of the search for its limit.
    fn rounds_plan(&self, work: ChosenWork, matches: &ArgMatches) -> anyhow::Result<Plan> {
        let ChosenWork { word, kind, ends, url, settings } = work;
        let doc = kind.command().expect("a chosen kind has a word");
        let of_command = |user_error: UserError| {
            user_error.with_line("in", format!("fathom {} {}", self.layer.command(), doc.selection()))
        };
        let scanned = scan::tests(matches, &settings, doc.scan, kind.options()).map_err(of_command)?;
        let search = find_limit::search(matches);
        let rounds = if search.is_some() || doc.single_round.is_some() { 1 } else { ROUNDS };
        let times = default_times(doc, &scanned[0].1, search.is_some());
        let times = measurement::trial_times(matches, times, rounds)?;
        let test = |(label, options): (String, Settings)| TestPlan {
            name: if label.is_empty() { kind.name().to_owned() } else { label },
            to: url.is_none().then(|| ends.to().to_owned()),
            options,
            search: search.clone(),
            events: given_texts(matches, AT),
            afterwards: given_texts(matches, AFTERWARDS),
            ..ends.test(kind.name(), times)
        };
        let mut tests = direction::add_reverse_tests(scanned.into_iter().map(test).collect(), matches)?;
        measurement::add_promises(&mut tests, matches)?;
        let what = if search.is_some() { "limit of " } else { "" };
        let to = matches.get_one::<String>("target").filter(|_| url.is_none());
        let to = to.map(|target| format!(" to {target}")).unwrap_or_default();
        let title = format!("{what}{} {}{to}", self.title, url.as_deref().unwrap_or(word));
        Ok(measurement::plan(title, rounds, ends, tests, matches))
    }

    /// Returns true if benchmarking methods can use a kind of the layer for their trials.
    fn has_methods(&self) -> bool {
        self.kinds().into_iter().any(|(_, kind)| kind.methods().is_some())
    }

    /// The protocol beside ours that was asked for, with the kind of the test that is meant or its first one.
    fn protocol(&self, matches: &ArgMatches) -> Option<ListedKind> {
        let word = matches.try_get_one::<String>("protocol").ok().flatten()?;
        let mut kinds = self.protocols().into_iter().filter(|(doc, _)| doc.word == word);
        let test = given_test(matches);
        let first = kinds.next()?;
        let is_meant = |(doc, _): &ListedKind| doc.protocol_test.is_some() && doc.protocol_test == test;
        if is_meant(&first) { Some(first) } else { Some(kinds.find(is_meant).unwrap_or(first)) }
    }

    /// The engine beside the usual one that was asked for.
    fn engine(&self, matches: &ArgMatches) -> Option<ListedKind> {
        let word = matches.try_get_one::<String>(ENGINE).ok().flatten()?;
        let engines = self.engines().into_iter().filter(|(doc, _)| doc.word == word);
        let (implied, usual): (Vec<_>, Vec<_>) = engines.partition(|(doc, _)| !doc.implied_by.is_empty());
        let is_implied = |(doc, _): &ListedKind| doc.implied_by.iter().any(|option| is_given(matches, option));
        implied.into_iter().find(is_implied).or_else(|| usual.into_iter().next())
    }

    /// The word and the kind of the test that is meant.
    fn chosen_test(&self, matches: &ArgMatches) -> Result<(&'static str, &'static dyn TestKind), UserError> {
        if let Some((engine, kind)) = self.engine(matches) {
            let Some(test) = given_test(matches) else { return Ok((engine.word, kind)) };
            let what =
                format!("--engine {} has no --test {test}: with --rate the load is open, else closed", engine.word);
            return Err(UserError::new(Exit::Usage, what).with_line("use", format!("leave out --test {test}")));
        }
        let Some((protocol, kind)) = self.protocol(matches) else {
            let word = self.test_word(matches);
            let (word, meant) = match direction::from_former_word(&word) {
                Some((word, direction)) => (word.to_owned(), Some(direction)),
                None => (word, direction::chosen(matches)),
            };
            let tests = self.tests();
            let found = tests.iter().find(|(test, _)| *test == word).expect("clap knows the tests of the table");
            return Ok((found.0, direction::kind(found, meant)?));
        };
        let test = given_test(matches);
        if test.is_some() && test != protocol.protocol_test {
            return Err(self.no_such_protocol_test(protocol.word));
        }
        Ok((protocol.word, kind))
    }

    /// The error for a test that a protocol does not have.
    fn no_such_protocol_test(&self, protocol: &str) -> UserError {
        let kinds = self.protocols().into_iter().filter(|(doc, _)| doc.word == protocol);
        let tests: Vec<&str> = kinds.filter_map(|(doc, _)| doc.protocol_test).collect();
        if tests.is_empty() {
            return UserError::new(Exit::Usage, format!("--protocol {protocol} has no --test"))
                .with_line("use", "--direction up, down or both");
        }
        UserError::new(Exit::Usage, format!("--protocol {protocol} does not have this --test"))
            .with_line("use", format!("--test {}", tests.join(", ")))
    }

    /// The word of the test that is meant.
    fn test_word(&self, matches: &ArgMatches) -> String {
        let is_implied = |doc: &CommandDoc| doc.implied_by.iter().any(|option| is_given(matches, option));
        let implied = self.kinds().into_iter().find(|(doc, _)| !doc.is_engine && is_implied(doc));
        match implied.filter(|_| !is_given(matches, "test")) {
            Some((doc, _)) => doc.word.to_owned(),
            None => matches.get_one::<String>("test").expect("it has a default").clone(),
        }
    }

    /// Returns the hosts, and the URL if the target does not run fathom.
    fn ends(&self, matches: &ArgMatches, kind: &dyn TestKind) -> anyhow::Result<(TestHosts, Option<String>)> {
        let device = matches.get_one::<String>("device").map(String::as_str);
        let target = matches.get_one::<String>("target");
        // The address of targets may be in a lab; that of a server of another tool is outside.
        let may_be_in_lab = self.layer == Layer::Http || has_server(kind) && self.protocol(matches).is_none();
        let is_outside = may_be_in_lab || self.protocol(matches).is_some();
        let sides = if target.is_some() && is_outside { NamedSides::FromOnly } else { NamedSides::Both };
        if let Some(ends) = measurement::hosts_of_inventory(matches, sides)? {
            if target.is_some() && sides == NamedSides::Both {
                let user_error = UserError::new(Exit::Usage, "either a target or --hosts, not both");
                return Err(user_error.with_line("use", "--hosts FILE --from HOST --to HOST").into());
            }
            return Ok((ends, target.cloned()));
        }
        match (target, measurement::lab_option(matches)) {
            (Some(target), Some(lab)) if may_be_in_lab => {
                Ok((measurement::hosts_in_lab(lab, device)?, Some(target.clone())))
            }
            (Some(_), Some(_)) if device.is_some() => {
                Err(UserError::new(Exit::Usage, "--device needs --lab; it cannot be used with a target").into())
            }
            (Some(target), None) if is_outside => Ok((measurement::hosts_on_loopback(), Some(target.clone()))),
            (Some(target), None) => Ok((measurement::hosts_at_target(target, matches)?, None)),
            (None, Some(lab)) => Ok((measurement::pair_in_lab(lab, device)?, None)),
            (Some(_), Some(_)) => Err(UserError::new(Exit::Usage, "either a target or --lab, not both").into()),
            (None, None) if matches.try_get_one::<String>(RECEIVE).is_ok_and(|device| device.is_some()) => {
                Ok((measurement::hosts_on_loopback(), None))
            }
            (None, None) => {
                Err(UserError::new(Exit::Usage, format!("fathom {} needs a {}", self.layer.command(), self.target.0))
                    .with_line("use", self.target.1)
                    .with_line("try", format!("fathom {} --lab pair", self.layer.command()))
                    .into())
            }
        }
    }
}

/// Removes the direction from the options of a kind that does not take it as an option.
pub(super) fn without_foreign_direction(kind: &dyn TestKind, mut settings: Settings) -> Settings {
    if !direction::has_direction(kind) {
        settings.0.remove(direction::DIRECTION);
    }
    settings
}

/// The option with what happens during a test, and the option with what runs after it.
const AT: &str = "at";
const AFTERWARDS: &str = "afterwards";

/// Returns the options for what happens during a test.
fn event_arguments() -> [Arg; 2] {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).action(ArgAction::Append).help_heading("Events")
    };
    [
        text(
            AT,
            "EVENT",
            "let this happen in each round: a time since its start, warm-up included, and a command, such as '4s ip link set eth1 down', or '4s-8s/50ms COMMAND' for every 50 ms; in a lab also '4s on=HOST COMMAND', '4s link-down=HOST:DEVICE', '4s-8s black-hole=HOST' and '4s-8s stop-target=HOST', which are undone at the end of the round, or at 8 s, and '4s kill-device=HOST', which is not",
        ),
        text(
            AFTERWARDS,
            "COMMAND",
            "run this after each round with events, even after ctrl-C, to undo what they changed",
        )
        .requires(AT),
    ]
}

/// Refuses events beside what runs many trials of its own, in none of which they would have their place.
fn refuse_events(matches: &ArgMatches, beside: &str) -> Result<(), UserError> {
    if given_texts(matches, AT).is_empty() {
        return Ok(());
    }
    let what = format!("--{AT} cannot be used with {beside}, which runs many trials of its own");
    Err(UserError::new(Exit::Usage, what).with_line("use", format!("--{AT} with a test of rounds, such as --rounds 3")))
}

/// Returns the values of an option that may be given several times.
fn given_texts(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many::<String>(name).into_iter().flatten().cloned().collect()
}

/// Returns true for a kind whose target is an address in its settings, and not a host with a fathom.
fn has_server(kind: &dyn TestKind) -> bool {
    kind.options().iter().any(|option| option.name == SERVER)
}

/// Refuses options that only a fathom responder has.
pub(super) fn refuse_responder_options(kind: &dyn TestKind, matches: &ArgMatches) -> Result<(), UserError> {
    match kind.responder_options().iter().find(|option| is_given(matches, option.name)) {
        None => Ok(()),
        Some(option) => {
            let what = format!("--{} has no effect with a URL", option.name);
            let use_instead =
                "a host instead of the URL, with `fathom serve` on it: the option sets up its HTTP responder";
            Err(UserError::new(Exit::Usage, what).with_line("use", use_instead))
        }
    }
}

/// Whether the command line has the option.
fn is_given(matches: &ArgMatches, option: &str) -> bool {
    let is_known = matches.try_contains_id(option).unwrap_or(false);
    is_known && matches.value_source(option) == Some(ValueSource::CommandLine)
}

/// The value of `--test`, if the command line has one.
fn given_test(matches: &ArgMatches) -> Option<&str> {
    let is_given = matches.value_source("test") == Some(ValueSource::CommandLine);
    matches.get_one::<String>("test").filter(|_| is_given).map(String::as_str)
}

/// The times of each round, unless the command line sets them.
fn default_times(doc: CommandDoc, settings: &Settings, is_search: bool) -> TrialTimes {
    let times = match (is_search, doc.single_round) {
        (true, _) => find_limit::TIMES,
        (_, Some(duration)) => TrialTimes { warmup: Nanos::ZERO, duration },
        _ => TIMES,
    };
    let duration = if settings.text("bytes").is_some() { BYTES_MAX } else { times.duration };
    // A profile is followed once, to its end.
    let profile = settings.text("profile").and_then(|profile| profile.parse::<Profile>().ok());
    let duration = profile.and_then(|profile| profile.length()).unwrap_or(duration);
    TrialTimes { duration, ..times }
}

#[cfg(test)]
mod tests {
    use fathom_engine::{Error, Test};
    use fathom_model::{Metric, OptionDoc, Role, ValueKind};
    use fathom_sys::policy::Policy;

    use super::*;

    /// A kind that no table of the program knows.
    struct ThrowAway;

    impl TestKind for ThrowAway {
        fn name(&self) -> &'static str {
            "tcp_throw_away"
        }

        fn about(&self) -> &'static str {
            "proves that a new kind is one file and one line"
        }

        fn layer(&self) -> Layer {
            Layer::Tcp
        }

        fn command(&self) -> Option<CommandDoc> {
            Some(CommandDoc::test("throw-away").implied_by(&["n-steps"]))
        }

        fn is_two_sided(&self, _settings: &Settings) -> bool {
            true
        }

        fn title(&self, _settings: &Settings) -> String {
            "steps".to_owned()
        }

        fn options(&self) -> &'static [OptionDoc] {
            &[OptionDoc { name: "n-steps", value: ValueKind::Count(1, 10), default: None, help: "number of steps" }]
        }

        fn metrics(&self) -> &'static [Metric] {
            &[]
        }

        fn prepare(&self, _: &Role, _: &Policy) -> Result<Box<dyn Test>, Error> {
            unreachable!("it is only looked up")
        }
    }

    #[test]
    fn a_kind_that_is_one_line_of_a_table_has_its_word_its_options_and_its_help() {
        let command = LayerCommand { kinds: || &[&ThrowAway], ..TCP };
        let mut shape = command.define(Command::new("tcp"));
        assert!(shape.render_long_help().to_string().contains("number of steps"));
        let matches = shape.try_get_matches_from(["tcp", "--lab", "pair", "--n-steps", "7"]).unwrap();
        let (word, kind) = command.chosen_test(&matches).unwrap();
        assert_eq!((word, kind.name()), ("throw-away", "tcp_throw_away"));
        assert_eq!(options::settings(&matches, &[kind]).count("n-steps"), Some(7));
    }
}
