//! The options of every command that measures, and the steps after its plan is built.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_analyze::promise;
use fathom_fleet::tls::{Identity, Key};
use fathom_lab::{
    Device, LabRecord, Options, Preset, StateFolder,
    device::{self, FORMS},
    preset,
};
use fathom_model::{
    Plan, TestPlan, TrialTimes, Unit,
    host_port::{bracketed, port_number, split_host_port},
    plan::{HostReach, LabPlan},
    reach::PushedBinary,
    shell::shell_word,
    units::Nanos,
};

use super::many_hosts;
pub(crate) use super::test_hosts::TestHosts;
use fathom_run::exit::lab_error;
use fathom_run::{
    allow::AllowList,
    execute::{self, CheckedPlan, FinishedRun, RunOptions},
    exit::{Exit, UserError},
    files,
    hosts::{self, HostUse, fleet_error},
    inventory, output, registry, store, target,
};
use fathom_sys::clock;

/// The default port of agents.
pub(crate) const AGENT_PORT: u16 = 7700;

/// Returns the options for times, places and promises.
pub(crate) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let mut arguments = vec![
        text("duration", "TIME", "measured time of each test, shared by its rounds; warm-ups come on top"),
        text("warmup", "TIME", "longest warm-up; it ends earlier when the rate is steady"),
        text("rounds", "N", "number of repetitions of each test; intervals come from the differences between rounds")
            .value_parser(clap::value_parser!(u32).range(1..=1000)),
        text(
            "until-ci",
            "WIDTH",
            "end the rounds when each test's interval is at most so wide to either side, such as 2%; at most --rounds [default: 30]",
        ),
        text("seed", "N", "seed of everything random [default: from the clock]").value_parser(clap::value_parser!(u64)),
        text("expect", "PROMISE", "expected result: 10Gbit, or TEST.METRIC=VALUE; exit code 10 if it is not met")
            .action(ArgAction::Append),
        text(
            "key",
            "KEY",
            "the key that `fathom serve` printed on the target; FATHOM_KEY and --key-file keep it off the command line",
        ),
        text("key-file", "FILE", "read the key of the target from this file")
            .conflicts_with("key")
            .value_parser(clap::value_parser!(PathBuf)),
        text("lab", "NAME", "measure in this lab: a preset that is built for the run, or one that is up"),
        device(),
        allow(),
        Arg::new("plan").long("plan").help("print the plan and start nothing").action(ArgAction::SetTrue),
    ];
    arguments.extend(output::arguments());
    arguments.extend(output::result_arguments());
    arguments
}

/// Returns the options that choose hosts of an inventory for the two sides of a test.
pub(crate) fn hosts_arguments() -> Vec<Arg> {
    let name = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("HOSTS").help(help).help_heading("Hosts")
    };
    // Without hosts there is nobody to copy it to. A plan can name them on its own.
    let [inventory, push_binary, render] = inventory_arguments();
    let mut arguments = vec![inventory, push_binary.requires(HOSTS), render.requires(HOSTS)];
    arguments.push(name(
        "from",
        "hosts or groups of --hosts or a --lab that initiate, with commas between them [default: the companions]",
    ));
    arguments.push(name("to", "hosts or groups that respond [default: the one with the role sut]; with a URL, the host that its server runs on, to read its counters"));
    arguments
}

/// The option with the inventory.
const HOSTS: &str = "hosts";

/// Returns the options for the inventory, its programs and its pods.
pub(crate) fn inventory_arguments() -> [Arg; 3] {
    [
        Arg::new(HOSTS)
            .long(HOSTS)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .conflicts_with_all(["lab", "device"])
            .help("inventory of hosts in TOML; `fathom hosts check --hosts FILE` shows whether they are ready")
            .help_heading("Hosts"),
        push_binary(),
        render(),
    ]
}

/// The option that prints manifests.
const RENDER: &str = "render";

/// Returns the option that prints the manifests of pods.
pub(crate) fn render() -> Arg {
    Arg::new(RENDER)
        .long(RENDER)
        .action(ArgAction::SetTrue)
        .help("print the Kubernetes manifests of the hosts that are pods, and start nothing")
        .help_heading("Hosts")
}

/// Prints the manifests of the pods of a plan, if that is asked for. Returns whether it is.
pub(crate) fn rendered(plan: &Plan, host_use: HostUse, matches: &ArgMatches) -> anyhow::Result<bool> {
    use std::io::Write as _;
    if !matches.try_get_one::<bool>(RENDER).ok().flatten().is_some_and(|is_asked| *is_asked) {
        return Ok(false);
    }
    let id = store::run_id(&jiff::Zoned::now(), clock::wall().0);
    let Some(manifests) = hosts::manifests(plan, &id, host_use) else {
        return Err(UserError::new(Exit::Usage, "no host of this run is a pod, so there is nothing to render")
            .with_line("fix", "launcher = \"kubernetes\" in the inventory")
            .into());
    };
    write!(std::io::stdout().lock(), "{manifests}")?;
    Ok(true)
}

/// Returns the option that copies this program to hosts.
pub(crate) fn push_binary() -> Arg {
    Arg::new("push-binary")
        .long("push-binary")
        .value_name("THEN")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("remove")
        .value_parser(["remove", "keep"])
        .help("copy this program to ssh hosts that lack this version, and remove or keep it after the run")
        .help_heading("Hosts")
}

/// Completes the hosts of a plan: those of inventories are read, keys are filled in, and the program is copied if that is asked for.
pub(crate) fn complete_hosts<'h>(
    hosts: impl Iterator<Item = &'h mut HostReach>,
    matches: &ArgMatches,
) -> Result<(), UserError> {
    let given = key(matches)?;
    let push = matches.try_get_one::<String>("push-binary").ok().flatten();
    let push = push.map(|then| if then == "keep" { PushedBinary::Keep } else { PushedBinary::Remove });
    for reach in hosts {
        match reach {
            // An inventory or a plan can have keys for several hosts. The given key is for hosts without one.
            HostReach::Tls { key, .. } => *key = key.take().or_else(|| given.clone()),
            HostReach::Ssh(host) => host.push = push.or(host.push),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the hosts of the inventory that the options name; none without an inventory. With a target outside, only the first side.
pub(crate) fn hosts_of_inventory(matches: &ArgMatches, sides: NamedSides) -> Result<Option<TestHosts>, UserError> {
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>(HOSTS) else { return Ok(None) };
    let file = inventory::read(path)?;
    let mut ends = many_hosts::of_inventory(&file.inventory, path, matches, sides == NamedSides::Both)?;
    for (name, reach) in &mut ends.hosts {
        *reach = file.reach(name)?;
    }
    complete_hosts(ends.hosts.iter_mut().map(|(_, reach)| reach), matches)?;
    Ok(Some(ends))
}

/// The sides of a test that hosts of an inventory play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedSides {
    Both,
    /// The other side is a target outside.
    FromOnly,
}

/// The option that tests causes.
const PROVE: &str = "prove";

/// Returns the option that proves or refutes the causes that were found, for commands whose tests can be repeated.
pub(crate) fn prove() -> Arg {
    Arg::new(PROVE)
        .long(PROVE)
        .help("afterwards, repeat each test that is held back with one option changed, to prove or refute its cause")
        .action(ArgAction::SetTrue)
}

/// Returns true if causes are to be proven.
pub(crate) fn is_proof_asked(matches: &ArgMatches) -> bool {
    matches.try_get_one::<bool>(PROVE).ok().flatten().is_some_and(|asked| *asked)
}

/// Returns the option that adds to the allow-list.
pub(crate) fn allow() -> Arg {
    Arg::new("allow")
        .long("allow")
        .value_name("CIDR")
        .help("also allow traffic to this address, network or name; `fathom allow add` remembers it")
        .action(ArgAction::Append)
}

/// Returns the allow-list for the typed command.
pub(crate) fn allowed(matches: &ArgMatches) -> Result<AllowList, UserError> {
    AllowList::load(matches.get_many::<String>("allow").into_iter().flatten(), command_line())
}

/// The maximum size of a file with a key: a certificate and its private key.
pub(crate) const KEY_FILE_MAX: u64 = 64 << 10;

/// Returns the key of the target: as typed, from a file, or from `FATHOM_KEY`, which is not visible in process listings.
pub(crate) fn key(matches: &ArgMatches) -> Result<Option<String>, UserError> {
    if let Some(key) = matches.get_one::<String>("key") {
        return Ok(Some(key.clone()));
    }
    let Some(path) = matches.get_one::<PathBuf>("key-file") else {
        return Ok(std::env::var("FATHOM_KEY").ok().filter(|key| !key.trim().is_empty()));
    };
    let text = files::read_text(path, KEY_FILE_MAX).map_err(|error| UserError::from_error(Exit::Usage, &error))?;
    // The identity file of a `fathom serve` on this machine also contains its key.
    let key = text.parse().or_else(|error| Identity::parse(&text).map(|identity| identity.key()).map_err(|_| error));
    let key: Key = key.map_err(|error| fleet_error(&error).with_line("in", path.display().to_string()))?;
    Ok(Some(key.to_string()))
}

/// Returns the option for the device between the hosts of a lab.
pub(crate) fn device() -> Arg {
    let about: Vec<_> = FORMS.iter().map(|(word, arguments, about)| format!("{word}{arguments} ({about})")).collect();
    let help =
        format!("device between the hosts of a lab, on its own core unless it is a policer: {}", about.join("; "));
    Arg::new("device").long("device").value_name("DEVICE").help(help)
}

/// Returns a duration from the options.
pub(crate) fn duration_option(matches: &ArgMatches, name: &str, default: Nanos) -> anyhow::Result<Nanos> {
    let Some(text) = matches.get_one::<String>(name) else { return Ok(default) };
    text.parse().map_err(|error| UserError::new(Exit::Usage, format!("--{name}: {error}")).into())
}

/// Returns the measured time of a round. `--duration` covers all rounds together.
pub(crate) fn round_duration(matches: &ArgMatches, default: Nanos, usual_rounds: u32) -> anyhow::Result<Nanos> {
    if !matches.contains_id("duration") {
        return Ok(default);
    }
    let rounds = matches.get_one::<u32>("rounds").copied().unwrap_or(usual_rounds);
    let all = duration_option(matches, "duration", default)?;
    let round = all / u64::from(rounds.max(1));
    if round == Nanos::ZERO {
        let user_error =
            UserError::new(Exit::Usage, format!("--duration {all} leaves nothing for each of {rounds} rounds"));
        return Err(user_error.with_line("use", "--duration 10s").into());
    }
    Ok(round)
}

/// Returns the times of each trial, by the options or by default.
pub(crate) fn trial_times(matches: &ArgMatches, default: TrialTimes, usual_rounds: u32) -> anyhow::Result<TrialTimes> {
    Ok(TrialTimes {
        warmup: duration_option(matches, "warmup", default.warmup)?,
        duration: round_duration(matches, default.duration, usual_rounds)?,
    })
}

/// Returns the selected lab. A device without a lab selects the preset `pair`, or a single target if it divides traffic among targets.
pub(crate) fn lab_option(matches: &ArgMatches) -> Option<&str> {
    let needs_targets = |device: &String| device.parse().is_ok_and(|device: Device| device.needs_targets());
    let preset = |device| if needs_targets(device) { "targets:1" } else { "pair" };
    let device = matches.get_one::<String>("device").map(preset);
    matches.get_one::<String>("lab").map(String::as_str).or(device)
}

/// A lab that is up, or one that a run would build.
struct KnownLab {
    ends: TestHosts,
    device: Option<Device>,
    n_targets: usize,
}

impl KnownLab {
    /// Looks up a running lab with this name, or else a preset.
    fn find(name: &str, device: Option<&str>) -> Result<Self, UserError> {
        match StateFolder::from_environment().and_then(|state| fathom_lab::list(&state)) {
            Ok(labs) => match labs.into_iter().find(|(up, _)| up.as_str() == name) {
                Some((_, record)) => Self::up(name, device, record),
                None => Self::preset(name, device),
            },
            Err(error) if !preset::is_known(name) => Err(lab_error(&error)),
            Err(_) => Self::preset(name, device),
        }
    }

    fn up(name: &str, device: Option<&str>, record: LabRecord) -> Result<Self, UserError> {
        if let Some(device) = device {
            let text = format!("--device {device} cannot be used: lab `{name}` is already up");
            return Err(UserError::new(Exit::Usage, text)
                .with_line("why", "the device of a lab is chosen when the lab is set up")
                .with_line(
                    "use",
                    format!("fathom lab up pair --name OTHER --device {device}        # then --lab OTHER"),
                ));
        }
        let reach = |host: &str| HostReach::LabUp(name.to_owned(), host.to_owned());
        let n_targets = record.hosts.iter().filter(|host| host.virtual_address.is_some()).count();
        let device = record.device.map(|record| record.device);
        let is_preset = |has: fn(&Preset) -> bool| preset::find(&record.preset).is_ok_and(has);
        let ends = if is_preset(Preset::has_companions) {
            let names = record.hosts.iter().map(|host| host.name.to_string());
            let names: Vec<String> = names.filter(|name| name != preset::SWITCH).collect();
            many_hosts::star(&names, reach)
        } else if is_preset(Preset::has_targets) {
            through_device(None, reach)
        } else {
            pair(None, device.is_some(), reach)
        };
        Ok(Self { ends, device, n_targets })
    }

    fn preset(name: &str, device: Option<&str>) -> Result<Self, UserError> {
        let reach = |host: &str| HostReach::Lab(host.to_owned());
        let device: Option<Device> = device.map(str::parse).transpose().map_err(|error| lab_error(&error))?;
        let options = Options { device, ..Options::default() };
        let (known, options) = preset::chosen(name, options).map_err(|error| lab_error(&error))?;
        let fitted = known.device(&options).map_err(|error| lab_error(&error))?;
        let device = options.device.as_ref().map(ToString::to_string);
        let lab = Some(LabPlan { preset: name.to_owned(), mtu_bytes: None, device, direct_wire: false });
        let n_targets = if known.has_targets() { known.ends(&options).len() - 1 } else { 0 };
        let ends = if known.has_companions() {
            TestHosts { lab, ..many_hosts::star(&known.ends(&options), reach) }
        } else if known.has_targets() {
            through_device(lab, reach)
        } else {
            pair(lab, fitted.is_some(), reach)
        };
        Ok(Self { ends, device: options.device, n_targets })
    }
}

/// Returns two hosts of a lab and the device between them. Uses a running lab with this name, or else a preset built for the
/// run.
pub(crate) fn hosts_in_lab(name: &str, device: Option<&str>) -> Result<TestHosts, UserError> {
    KnownLab::find(name, device).map(|lab| lab.ends)
}

/// Returns the two hosts of a lab, with the device between them if there is one.
fn pair(lab: Option<LabPlan>, has_device: bool, reach: impl Fn(&str) -> HostReach) -> TestHosts {
    let names = if has_device { vec!["a", device::HOST, "b"] } else { vec!["a", "b"] };
    TestHosts::between(lab, names.into_iter().map(|host| (host.to_owned(), reach(host))).collect())
}

/// Returns the client, the device and the first target of a lab with targets.
fn through_device(lab: Option<LabPlan>, reach: impl Fn(&str) -> HostReach) -> TestHosts {
    let names = [preset::CLIENT, device::HOST, preset::FIRST_TARGET];
    TestHosts::between(lab, names.into_iter().map(|host| (host.to_owned(), reach(host))).collect())
}

/// Returns two hosts of a lab like [`hosts_in_lab`], for a test between them.
///
/// # Errors
/// If a device between them decides which target is the other host.
pub(crate) fn pair_in_lab(name: &str, device: Option<&str>) -> Result<TestHosts, UserError> {
    let (ends, device) = pair_through_device(name, device)?;
    match device.filter(Device::translates) {
        None => Ok(ends),
        Some(device) => {
            let what = format!("--device {device} translates addresses, so no target listens at the virtual address");
            Err(UserError::new(Exit::Usage, what)
                .with_line("use", "--device router or balancer, or fathom path, which knows both addresses")
                .with_line("or", "a URL: fathom http http://198.18.8.1:PORT --lab NAME"))
        }
    }
}

/// Returns the same with the device between them, which may translate the address of the second one.
///
/// # Errors
/// If the device decides which target is the other host.
pub(crate) fn pair_through_device(name: &str, device: Option<&str>) -> Result<(TestHosts, Option<Device>), UserError> {
    let KnownLab { ends, device, n_targets } = KnownLab::find(name, device)?;
    match device.as_ref().filter(|device| device.needs_targets() && n_targets > 1) {
        None => Ok((ends, device)),
        Some(device) => {
            let what =
                format!("--device {device} decides which of {n_targets} targets answers, and this test needs one");
            Err(UserError::new(Exit::Usage, what).with_line("use", format!("--lab targets:1 --device {device}")))
        }
    }
}

/// Returns the hosts that load a target by its URL: those of an inventory or a lab, or this machine.
pub(crate) fn initiators(matches: &ArgMatches) -> Result<TestHosts, UserError> {
    let ends = match (hosts_of_inventory(matches, NamedSides::FromOnly)?, lab_option(matches)) {
        (Some(ends), _) => ends,
        (None, Some(lab)) => hosts_in_lab(lab, matches.get_one::<String>("device").map(String::as_str))?,
        (None, None) => hosts_on_loopback(),
    };
    many_hosts::chosen(ends, matches)
}

/// The name of the only host of a run, as it reads in a sentence.
const ONLY_HOST: &str = "this machine";

/// Returns this machine for both roles.
pub(crate) fn hosts_on_loopback() -> TestHosts {
    TestHosts::between(None, vec![(ONLY_HOST.to_owned(), HostReach::This)])
}

/// Returns this machine and a `fathom serve`, or only this machine for a loopback address.
pub(crate) fn hosts_at_target(target: &str, matches: &ArgMatches) -> Result<TestHosts, UserError> {
    let wrong = || {
        UserError::new(Exit::Usage, format!("`{target}` is not a target"))
            .with_line("use", "HOST, HOST:PORT or [ADDRESS]:PORT")
    };
    let (host, port) = split_host_port(target).ok_or_else(wrong)?;
    let port = port.map(|port| port_number(port).ok_or_else(wrong)).transpose()?;
    let key = key(matches)?;
    // This machine alone needs no key, so a key in the environment is meant for another target.
    let is_given = ["key", "key-file"].iter().any(|name| matches.contains_id(name)) || port.is_some();
    if key.is_none() || !is_given {
        let addresses = target::resolve(host)?;
        if addresses.iter().all(IpAddr::is_loopback) {
            let usual = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let other = addresses.first().copied().filter(|_| !addresses.contains(&usual));
            return Ok(other.map_or_else(hosts_on_loopback, |other| {
                TestHosts::between(None, vec![(ONLY_HOST.to_owned(), HostReach::At(other))])
            }));
        }
    }
    if key.is_none() {
        return Err(UserError::new(Exit::Preflight, format!("{target} is not a target you have allowed"))
            .with_line("why", "both ends are measured, so a fathom must be there that answers with a key")
            .with_line("fix", format!("fathom serve        # on {target}: prints a key"))
            .with_line("then", format!("{} --key KEY", command_line())));
    }
    let port = port.unwrap_or(AGENT_PORT);
    let address = format!("{}:{port}", bracketed(host));
    let target = HostReach::Tls { address, key, data: None };
    let hosts = vec![("client".to_owned(), HostReach::This), ("target".to_owned(), target)];
    Ok(TestHosts::between(None, hosts))
}

/// Adds promises to the tests that they refer to.
///
/// `10Gbit` refers to the first metric of every test, if that metric has this unit and the test runs as fast as possible.
/// `TEST.METRIC=VALUE` and `METRIC=VALUE` name the metric.
pub(crate) fn add_promises(tests: &mut [TestPlan], matches: &ArgMatches) -> anyhow::Result<()> {
    for text in matches.get_many::<String>("expect").into_iter().flatten() {
        let n_kept = tests.iter_mut().map(|test| add_promise(test, text)).collect::<anyhow::Result<Vec<_>>>()?;
        if !n_kept.into_iter().any(|kept| kept) {
            let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
            return Err(UserError::new(Exit::Usage, format!("--expect {text} is about no test of this run"))
                .with_line("tests", names.join(", "))
                .with_line(
                    "use",
                    "--expect 10Gbit, --expect tcp_stream.throughput_bps=10Gbit, --expect 'udp_stream.lost<=0.1%'",
                )
                .into());
        }
    }
    Ok(())
}

fn add_promise(test: &mut TestPlan, promise: &str) -> anyhow::Result<bool> {
    let metrics = registry::kind(&test.kind)?.metrics();
    // A test name can contain any character, such as `direction=up` of a scan, so it is matched as a whole.
    let of_test = promise.strip_prefix(test.name.as_str()).and_then(|rest| rest.strip_prefix('.'));
    let rest = of_test.unwrap_or(promise);
    let split = rest.find(['=', '<', '>', '≤', '≥']);
    let (subject, value) = split.map_or(("", rest), |at| (rest[..at].trim(), rest[at..].trim_start_matches('=')));
    let metric = match subject {
        // A test with a requested rate cannot show the capacity of the network.
        "" if test.options.text("rate").is_some() && of_test.is_none() => None,
        "" => metrics.first().filter(|first| is_of(value, first.unit)),
        _ => promise::find(metrics, subject).ok(),
    };
    let Some(metric) = metric else { return Ok(false) };
    promise::parse(value, metric).map_err(|error| {
        UserError::new(Exit::Usage, format!("--expect {promise}: {error}")).with_line("use", error.hint())
    })?;
    test.expect.insert(metric.name.to_string(), value.to_owned());
    Ok(true)
}

/// Returns true if a bare promise such as `10Gbit` or `200kpps` can refer to a metric of this unit.
fn is_of(value: &str, unit: Unit) -> bool {
    let value = value.trim_end_matches("/s");
    let is_bits = value.ends_with("bit") || value.ends_with("bps") && !value.ends_with("pps") || value.ends_with('G');
    match unit {
        Unit::BitsPerSec => is_bits,
        Unit::FramesPerSec => value.ends_with("pps"),
        Unit::RequestsPerSec => value.ends_with("req") || value.ends_with("rps"),
        _ => false,
    }
}

/// The maximum number of rounds of a run that continues until its intervals are narrow, as in netperf.
const ROUNDS_MAX: u32 = 30;

/// Builds a plan. `rounds` is the default if the command line does not set it.
pub(crate) fn plan(
    mut title: String,
    rounds: u32,
    ends: TestHosts,
    tests: Vec<TestPlan>,
    matches: &ArgMatches,
) -> Plan {
    title.extend(ends.place());
    let seed = matches.get_one::<u64>("seed").copied().unwrap_or_else(|| fathom_sys::clock::wall().0 & 0xffff_ffff);
    let until_ci = matches.get_one::<String>("until-ci").cloned();
    let rounds = if until_ci.is_some() { ROUNDS_MAX } else { rounds };
    Plan {
        rounds: matches.get_one::<u32>("rounds").copied().unwrap_or(rounds),
        until_ci,
        prove: is_proof_asked(matches),
        seed,
        via: ends.via,
        lab: ends.lab,
        hosts: ends.hosts.into_iter().collect(),
        groups: ends.groups,
        on_loss: ends.on_loss,
        heads: ends.heads,
        ..Plan::new(title, tests)
    }
}

/// Returns the command that repeats this run, with the plain program name and without the key, which is a secret.
pub(super) fn command_line() -> String {
    let mut words = vec!["fathom".to_owned()];
    let mut is_key = false;
    for word in std::env::args().skip(1) {
        let shown = match word.split_once('=') {
            _ if is_key => "KEY".to_owned(),
            Some(("--key", _)) => "--key=KEY".to_owned(),
            _ => shell_word(&word),
        };
        is_key = word == "--key";
        words.push(shown);
    }
    words.join(" ")
}

/// Whether the result of a run is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepResult {
    /// Saved under `runs/` unless `--output` names another folder.
    Always,
    /// Saved only if `--output` is given.
    IfRequested,
}

/// Returns the run options of a command.
fn run_options(matches: &ArgMatches) -> anyhow::Result<RunOptions> {
    Ok(RunOptions {
        allowed: allowed(matches)?,
        is_quiet: matches.get_flag("quiet"),
        shows_estimate: true,
        is_live: output::is_live(matches),
        command: command_line(),
        on_progress: None,
    })
}

/// Returns the folder for the document and the report, if they are saved.
fn folder(matches: &ArgMatches, keep: KeepResult) -> Option<PathBuf> {
    let asked = matches.get_one::<PathBuf>("output").cloned();
    asked.or_else(|| (keep == KeepResult::Always).then(|| PathBuf::from(store::RUNS)))
}

/// Checks everything possible before the measurement: whether the report can be saved and the hosts answer.
pub(crate) fn check_before_run(plan: &Plan, matches: &ArgMatches, keep: KeepResult) -> anyhow::Result<()> {
    folder(matches, keep).as_deref().map_or(Ok(()), store::check_folder)?;
    execute::check_hosts(&CheckedPlan::new(plan.clone())?, &run_options(matches)?)
}

/// Runs a plan from which another one follows: it is neither printed nor kept.
pub(crate) fn run_unreported(plan: Plan, matches: &ArgMatches) -> anyhow::Result<FinishedRun> {
    let plan = CheckedPlan::new(plan)?;
    execute::execute(&plan, &RunOptions { is_live: false, shows_estimate: false, ..run_options(matches)? })
}

/// Prints the plan, or runs it and prints what it means.
pub(crate) fn run_and_report(plan: Plan, matches: &ArgMatches, keep: KeepResult) -> anyhow::Result<Exit> {
    let plan = CheckedPlan::new(plan)?;
    if matches.get_flag("plan") {
        use std::io::Write as _;
        write!(std::io::stdout().lock(), "{}", execute::plan_text(plan.plan())?)?;
        return Ok(Exit::Pass);
    }
    if rendered(plan.plan(), HostUse::Exclusive, matches)? {
        return Ok(Exit::Pass);
    }
    let folder = folder(matches, keep);
    folder.as_deref().map_or(Ok(()), store::check_folder)?;
    let executed = execute::execute(&plan, &run_options(matches)?)?;
    let exit = output::print(&executed.run, matches)?;
    if exit == Exit::Preflight {
        let user_error = UserError::new(exit, "no test could be started");
        eprintln!(
            "fathom: {}",
            user_error.with_line("try", "fathom doctor        # what this machine allows, and how to allow the rest")
        );
    }
    if let Some(folder) = folder {
        // Results that are saved by default are in a folder with the name of the run.
        let folder = if matches.contains_id("output") { folder } else { folder.join(&executed.run.id) };
        let report = store::save_run(&executed.run, &folder)?;
        eprintln!("report  {}", report.display());
    } else if output::is_text(matches) && !matches.get_flag("quiet") {
        eprintln!("not kept; -o FOLDER keeps the document and the report");
    }
    Ok(executed.signal.map_or(exit, Exit::Signalled))
}

#[cfg(test)]
mod tests {

    use super::*;

    /// Returns the promises that a test with this name and kind takes from a text.
    fn kept(name: &str, kind: &str, text: &str) -> Vec<(String, String)> {
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        let mut test = TestPlan { name: name.to_owned(), ..TestPlan::new(kind, times, "a") };
        let is_kept = add_promise(&mut test, text).unwrap();
        assert_eq!(is_kept, !test.expect.is_empty());
        test.expect.into_iter().collect()
    }

    #[test]
    fn a_promise_names_a_test_of_a_scan_and_only_that() {
        let of = |name: &str| kept(name, "tcp_loaded", "direction=up.latency_ns_p99<20ms");
        assert_eq!(of("direction=up"), [("latency_ns_p99".to_owned(), "<20ms".to_owned())]);
        assert_eq!((of("direction=down"), of("direction=up flows=2"), of("up")), (vec![], vec![], vec![]));
        let two = kept("direction=up flows=2", "tcp_loaded", "direction=up flows=2.latency_ns_p99=20ms");
        assert_eq!(two, [("latency_ns_p99".to_owned(), "20ms".to_owned())]);
    }

    #[test]
    fn a_promise_names_its_metric_by_name_or_title_or_not_at_all() {
        let loss = vec![("loss_ratio".to_owned(), "<=0.1%".to_owned())];
        assert_eq!(kept("udp_stream", "udp_stream", "udp_stream.lost<=0.1%"), loss);
        assert_eq!(kept("udp_stream", "udp_stream", "loss_ratio<=0.1%"), loss);
        assert_eq!(kept("tcp_stream", "tcp_stream", "10Gbit")[0].0, "throughput_bps");
        assert_eq!(kept("tcp_stream", "tcp_stream", "10kpps"), vec![]);
        assert_eq!(kept("tcp_stream", "tcp_stream", "lost<1%"), vec![]);
    }
}
