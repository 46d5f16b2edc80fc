//! `fathom hosts`: the hosts of an inventory, whether they are ready, and inventories of other tools.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use fathom_fleet::launcher::kubernetes::{self, RbacSubject};
use fathom_model::{
    Environment, HostRole, Inventory, Plan,
    plan::HostReach,
    shell::shell_words,
    units::{BitsPerSec, Nanos, approximate},
};
use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError},
    files::{self, FileReaders},
    hosts::{HostUse, Hosts},
    inventory::{self, InventoryFile},
    store,
    terminal::sanitized,
};
use fathom_sys::{clock, process::signal};
use serde::Serialize;

use super::measurement;

/// The version of the document of `check --json`.
const CHECK_SCHEMA: &str = "fathom.hosts-check/1";
/// The version of the document of `list --json`.
const LIST_SCHEMA: &str = "fathom.hosts-list/1";

const EXAMPLES: &str = "\
Examples:
  fathom hosts check --hosts rack.toml             whether each host is ready, and what it is
  fathom hosts check 'b[1-3]' --hosts rack.toml
  fathom hosts list --hosts rack.toml --json       every name, expanded
  fathom hosts import inventory.ini -o rack.toml   from Ansible, or from `ansible-inventory --list`
  fathom hosts rbac --hosts rack.toml --user bench | kubectl apply -f -

A smallest inventory is two lines:
  [groups]
  companions = \"10.0.0.[2-9]\"";

pub(super) fn define(command: Command) -> Command {
    let file = || {
        let file = Arg::new("hosts").long("hosts").value_name("FILE").required(true);
        file.value_parser(clap::value_parser!(PathBuf)).help("inventory of hosts in TOML")
    };
    let names = || {
        let names = Arg::new("names").value_name("HOSTS").action(ArgAction::Append);
        names.help("only these hosts, groups or ranges [default: all]")
    };
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("print one JSON document");
    let key = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    command
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("check")
                .about("Connect to every host: is it ready, its version, cores, device, speed, capabilities and clock")
                .args([names(), file(), json(), measurement::push_binary(), measurement::render()])
                .arg(key("key", "KEY", "the key of hosts with `fathom serve` that have none in the inventory"))
                .arg(
                    key("key-file", "FILE", "read that key from this file")
                        .conflicts_with("key")
                        .value_parser(clap::value_parser!(PathBuf)),
                ),
        )
        .subcommand(Command::new("list").about("Print the hosts and groups, expanded").args([names(), file(), json()]))
        .subcommand(
            Command::new("import").about("Turn an inventory of Ansible into one of ours").args([
                Arg::new("file")
                    .value_name("FILE")
                    .required(true)
                    .value_parser(clap::value_parser!(PathBuf))
                    .help("JSON of `ansible-inventory --list`, or a file that this program reads"),
                Arg::new("output")
                    .short('o')
                    .long("output")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help("write it to this file [default: standard output]"),
            ]),
        )
        .subcommand(
            Command::new("rbac")
                .about("Print the least rights that a run needs in a Kubernetes cluster: a Role and its RoleBinding")
                .arg(file())
                .args([
                    key("user", "NAME", "for this user, by the name that the cluster knows"),
                    key("group", "NAME", "for this group of users"),
                    key("service-account", "NAME", "for this service account of the namespace"),
                ])
                .group(ArgGroup::new("subject").args(["user", "group", "service-account"]).required(true)),
        )
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    match matches.subcommand() {
        Some(("check", given)) => check(given),
        Some(("import", given)) => import(given),
        Some(("rbac", given)) => rbac(given),
        Some((_, given)) => list(given),
        None => unreachable!("clap requires a subcommand"),
    }
}

fn path(matches: &ArgMatches) -> &Path {
    matches.get_one::<PathBuf>("hosts").expect("clap requires the file")
}

/// Returns the inventory, and the names of the chosen hosts.
fn chosen(matches: &ArgMatches) -> Result<(InventoryFile, Vec<String>), UserError> {
    let file = inventory::read(path(matches))?;
    let inventory = &file.inventory;
    let words: Vec<&str> = matches.get_many::<String>("names").into_iter().flatten().map(String::as_str).collect();
    let names = if words.is_empty() {
        let mut names: Vec<String> = inventory.hosts.keys().cloned().collect();
        names.sort_by_key(|name| natural(name));
        names
    } else {
        inventory::select(inventory, &words.join(","), path(matches))?
    };
    if names.is_empty() {
        let what = format!("`{}` names no host", words.join(","));
        return Err(UserError::new(Exit::Usage, what).with_line("use", "hosts, groups or ranges, or nothing for all"));
    }
    Ok((file, names))
}

/// Returns a name as a key that sorts numbers by their values: m2 stands before m10.
fn natural(name: &str) -> Vec<(bool, u64, String)> {
    let mut parts: Vec<String> = Vec::new();
    for letter in name.chars() {
        match parts.last_mut() {
            Some(part) if part.ends_with(|last: char| last.is_ascii_digit() == letter.is_ascii_digit()) => {
                part.push(letter);
            }
            _ => parts.push(letter.to_string()),
        }
    }
    let key = |part: String| {
        part.parse::<u64>().map_or_else(|_| (true, 0, part.clone()), |number| (false, number, part.clone()))
    };
    parts.into_iter().map(key).collect()
}

fn import(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let file = matches.get_one::<PathBuf>("file").expect("clap requires the file");
    let imported = inventory::import(file)?;
    match matches.get_one::<PathBuf>("output") {
        Some(path) => {
            files::write_whole(path, FileReaders::Anyone, |out| Ok(out.write_all(imported.text.as_bytes())?))?;
        }
        None => write!(io::stdout().lock(), "{}", imported.text)?,
    }
    for remark in imported.remarks {
        eprintln!("note: {}", on_one_line(&remark));
    }
    for left_out in &imported.left_out {
        eprintln!("left out: {}", on_one_line(left_out));
    }
    Ok(if imported.left_out.is_empty() { Exit::Pass } else { Exit::Incomplete })
}

/// Returns a text of a file of somebody else, which may have line breaks, as one line.
fn on_one_line(text: &str) -> String {
    sanitized(&text.replace('\n', " "))
}

fn rbac(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let inventory = inventory::read(path(matches))?;
    let pod = inventory.inventory.hosts.values().find_map(|host| match &host.reach {
        HostReach::Kubernetes(pod) => Some(pod),
        _ => None,
    });
    let pod = pod.ok_or_else(|| {
        UserError::new(Exit::Usage, format!("{}: none of its hosts is a pod", path(matches).display()))
            .with_line("fix", "launcher = \"kubernetes\"")
    })?;
    let name = |option: &str| matches.get_one::<String>(option).cloned();
    let user = || name("user").map(RbacSubject::User);
    let group = || name("group").map(RbacSubject::Group);
    let account = || name("service-account").map(RbacSubject::ServiceAccount);
    let subject = user().or_else(group).or_else(account).expect("clap requires one of them");
    write!(io::stdout().lock(), "{}", kubernetes::rbac(&pod.cluster, &subject))?;
    Ok(Exit::Pass)
}

/// The document of the list of hosts.
#[derive(Serialize)]
struct HostList {
    schema: &'static str,
    #[serde(flatten)]
    inventory: Inventory,
}

fn list(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (InventoryFile { mut inventory, .. }, names) = chosen(matches)?;
    inventory.hosts.retain(|name, _| names.contains(name));
    for host in inventory.hosts.values_mut() {
        // A key is a secret.
        if let HostReach::Tls { key, .. } = &mut host.reach {
            *key = None;
        }
    }
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &HostList { schema: LIST_SCHEMA, inventory })?;
        writeln!(out)?;
        return Ok(Exit::Pass);
    }
    let mut rows = vec![["host", "reached by", "data", "roles", "groups"].map(str::to_owned)];
    for name in &names {
        let host = &inventory.hosts[name];
        let data = host.reach.data().map_or_else(|| "–".to_owned(), |data| data.to_string());
        let of_host = |members: &[String]| members.contains(name);
        let groups: Vec<&str> =
            inventory.groups.iter().filter(|(_, members)| of_host(members)).map(|(group, _)| group.as_str()).collect();
        rows.push([name.clone(), reached_by(&host.reach), data, roles(&host.roles), groups.join(", ")]);
    }
    print_table(&mut out, &rows)?;
    Ok(Exit::Pass)
}

fn roles(roles: &[HostRole]) -> String {
    let word = |role: &HostRole| match role {
        HostRole::Sut => "sut",
        HostRole::Companion => "companion",
    };
    if roles.is_empty() { "–".to_owned() } else { roles.iter().map(word).collect::<Vec<_>>().join(", ") }
}

/// Returns how a host is reached, in words.
fn reached_by(reach: &HostReach) -> String {
    match reach {
        HostReach::This | HostReach::At(_) => "this machine".to_owned(),
        HostReach::Lab(lab) | HostReach::LabUp(lab, _) => format!("lab {lab}"),
        HostReach::Tls { address, .. } => format!("tls {address}"),
        HostReach::Ssh(host) => {
            let through: Vec<&str> = host.jump.iter().rev().map(String::as_str).collect();
            let through = if through.is_empty() { String::new() } else { format!(" through {}", through.join(", ")) };
            format!("ssh {}{through}", fathom_fleet::launcher::ssh::destination(host))
        }
        HostReach::Exec(host) => shell_words(&host.command),
        HostReach::Kubernetes(host) => kubernetes::destination(host),
        HostReach::Inventory(reference) => format!("inventory, {}", reference.host),
    }
}

/// Prints rows in columns; the first row has the titles.
fn print_table<const N: usize>(out: &mut impl io::Write, rows: &[[String; N]]) -> io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        writeln!(out, "{}", sanitized(cells.join("  ").trim_end()))?;
    }
    Ok(())
}

/// The document of a check.
#[derive(Serialize)]
struct CheckedHosts {
    schema: &'static str,
    n_ready: usize,
    hosts: Vec<CheckedHost>,
}

/// What a check found out about a host.
#[derive(Default, Serialize)]
struct CheckedHost {
    name: String,
    reached_by: String,
    is_ready: bool,
    /// Why it is not ready, and the way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_cores: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// How fast its line is; missing for a device that only has a number, such as a veth.
    #[serde(skip_serializing_if = "Option::is_none")]
    speed_bps: Option<u64>,
    /// `real`, or `nominal` for a device without a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_rate: Option<String>,
    capabilities: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_offset_ns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_error_ns: Option<u64>,
    /// The run that uses the host now.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use_by: Option<String>,
    remarks: Vec<String>,
}

fn check(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let (file, names) = chosen(matches)?;
    let mut reaches: BTreeMap<String, HostReach> = BTreeMap::new();
    let mut unknown: BTreeMap<String, UserError> = BTreeMap::new();
    for name in &names {
        match file.reach(name) {
            Ok(reach) => drop(reaches.insert(name.clone(), reach)),
            Err(error) => drop(unknown.insert(name.clone(), error)),
        }
    }
    measurement::complete_hosts(reaches.values_mut(), matches)?;
    let plan = Plan { hosts: reaches, ..Plan::new("check hosts", Vec::new()) };
    if measurement::rendered(&plan, HostUse::Shared, matches)? {
        return Ok(Exit::Pass);
    }
    // Pods that were started are deleted also after ctrl-C.
    let signals = signal::watch()?;
    let id = store::run_id(&jiff::Zoned::now(), clock::wall().0);
    let (mut hosts, mut errors) = Hosts::connect_each(&plan, &id, HostUse::Shared, &|| signals.received().is_some())?;
    if let Some(signal) = signals.received() {
        return Err(UserError::new(Exit::Signalled(signal), "interrupted before all hosts were asked").into());
    }
    errors.extend(hosts.check_addresses(&plan, &AllowList::load(std::iter::empty(), String::new())?));
    errors.extend(unknown);
    let mut checked: Vec<CheckedHost> = Vec::new();
    for name in &names {
        let mut host = CheckedHost {
            name: name.clone(),
            reached_by: reached_by(&file.inventory.hosts[name].reach),
            ..CheckedHost::default()
        };
        let outcome = match errors.get(name) {
            Some(error) => Err(error.to_string_of(name)),
            None => host.ask(&mut hosts, &plan.hosts[name]).map_err(|error| error.to_string()),
        };
        host.is_ready = outcome.is_ok();
        host.error = outcome.err();
        checked.push(host);
    }
    hosts.close()?;
    remark_shared_addresses(&mut checked);
    let n_ready = checked.iter().filter(|host| host.is_ready).count();
    let exit = if n_ready == checked.len() { Exit::Pass } else { Exit::Preflight };
    let mut out = io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &CheckedHosts { schema: CHECK_SCHEMA, n_ready, hosts: checked })?;
        writeln!(out)?;
    } else {
        print_checked(&mut out, &checked, n_ready)?;
    }
    Ok(exit)
}

/// Names hosts that have the same address on the path, which one of them must have by mistake.
fn remark_shared_addresses(checked: &mut [CheckedHost]) {
    let addresses: Vec<(String, Option<String>)> =
        checked.iter().map(|host| (host.name.clone(), host.address.clone())).collect();
    for host in checked {
        let same = addresses
            .iter()
            .find(|(name, address)| *name != host.name && address.is_some() && *address == host.address);
        host.remarks.extend(same.map(|(name, _)| format!("host `{name}` has the same address")));
    }
}

impl CheckedHost {
    /// Asks the agent of a connected host.
    fn ask(&mut self, hosts: &mut Hosts, reach: &HostReach) -> Result<(), fathom_fleet::Error> {
        let facts = hosts.fleet.facts(&self.name)?.clone();
        (self.hostname, self.n_cores, self.in_use_by) = (facts.hostname, facts.cores, facts.held_by);
        self.program = Some(hosts.fleet.program(&self.name)?.to_owned());
        let described = hosts.fleet.describe(&self.name)?;
        self.clock_offset_ns = Some(described.clock_offset_ns);
        self.clock_error_ns = Some(described.clock_error_ns.0);
        let environment = hosts.environment(&self.name)?;
        let place = &hosts.by_name[&self.name];
        self.address = Some(place.address.to_string());
        self.device.clone_from(&place.interface);
        self.note_speed(&environment);
        let capabilities = environment.get("tool", "capabilities").unwrap_or_default();
        self.capabilities = capabilities.split_whitespace().map(str::to_owned).collect();
        if self.device.is_none() {
            self.remarks.push(format!(
                "none of its interfaces has the address {}; data = \"…\" names the one of the test",
                place.address
            ));
        }
        if !self.capabilities.iter().any(|one| one == "net_raw") {
            let fix = match reach {
                HostReach::Kubernetes(_) => "capabilities = [\"NET_RAW\"] in [kubernetes]",
                HostReach::This | HostReach::At(_) => "start fathom here as root",
                HostReach::Exec(_) => "a command that starts the agent as root",
                HostReach::Tls { .. } => "start `fathom serve` there as root",
                _ => "sudo = true, or user = \"root\"",
            };
            self.remarks.push(format!("it cannot send raw frames and probes: {fix}"));
        }
        if let Some(run) = &self.in_use_by {
            self.remarks.push(format!("it is in use by {run}"));
        }
        Ok(())
    }

    /// Takes the speed of the device over, if it is one: the number that a device of memory reports limits nothing.
    fn note_speed(&mut self, environment: &Environment) {
        let fact = |name: &str| environment.get(self.device.as_deref()?, name).map(str::to_owned);
        self.line_rate = fact("line_rate");
        let speed = fact("speed_bps").filter(|_| !self.is_nominal());
        self.speed_bps = speed.and_then(|speed| speed.parse().ok());
    }

    fn is_nominal(&self) -> bool {
        self.line_rate.as_deref().is_some_and(|rate| rate != "real")
    }

    fn row(&self) -> [String; 8] {
        let or_missing = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let state = match (self.is_ready, &self.in_use_by) {
            (false, _) => "not ready",
            (true, Some(_)) => "in use",
            (true, None) => "ready",
        };
        let offset = self.clock_offset_ns.zip(self.clock_error_ns).map(|(offset, error)| {
            if offset == 0 && error == 0 {
                return "the same".to_owned();
            }
            let sign = if offset < 0 { "-" } else { "+" };
            format!("{sign}{} ± {}", Nanos(offset.unsigned_abs()), Nanos(error))
        });
        let speed = self.speed_bps.map(|speed| BitsPerSec::new(approximate(speed)).unwrap_or_default().to_string());
        [
            self.name.clone(),
            state.to_owned(),
            or_missing(self.program.clone().map(|program| program.trim_start_matches("fathom ").to_owned())),
            or_missing(self.n_cores.map(|n_cores| n_cores.to_string())),
            or_missing(self.device.clone()),
            or_missing(speed.or_else(|| self.line_rate.clone().filter(|_| self.is_nominal()))),
            or_missing(offset),
            if self.capabilities.is_empty() { "–".to_owned() } else { self.capabilities.join(" ") },
        ]
    }
}

fn print_checked(out: &mut impl io::Write, checked: &[CheckedHost], n_ready: usize) -> io::Result<()> {
    let titles = ["host", "state", "version", "cores", "device", "speed", "clock", "capabilities"].map(str::to_owned);
    let rows: Vec<[String; 8]> = std::iter::once(titles).chain(checked.iter().map(CheckedHost::row)).collect();
    print_table(out, &rows)?;
    for host in checked {
        for text in host.error.iter().chain(&host.remarks) {
            let mut lines = text.lines();
            writeln!(out, "\n{}: {}", host.name, sanitized(lines.next().unwrap_or_default()))?;
            for line in lines {
                writeln!(out, "{}", sanitized(line))?;
            }
        }
    }
    let hosts = if checked.len() == 1 { "host" } else { "hosts" };
    let are = if n_ready == 1 { "is" } else { "are" };
    writeln!(out, "\n{n_ready} of {} {hosts} {are} ready", checked.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_speed_of_a_line_is_shown_as_one() {
        let cases = [
            (Some("real"), Some("25000000000"), (Some(25_000_000_000), "25.0 Gbit/s")),
            (Some("nominal"), Some("10000000000"), (None, "nominal")),
            // A driver that is not known may have a line.
            (None, Some("1000000000"), (Some(1_000_000_000), "1.00 Gbit/s")),
            (None, None, (None, "–")),
        ];
        for (line_rate, speed, (speed_bps, shown)) in cases {
            let mut facts = Environment::default();
            for (name, value) in [("line_rate", line_rate), ("speed_bps", speed)] {
                if let Some(value) = value {
                    facts.note("eth0", name, value);
                }
            }
            let mut host = CheckedHost { device: Some("eth0".to_owned()), ..CheckedHost::default() };
            host.note_speed(&facts);
            assert_eq!((host.speed_bps, host.row()[5].as_str()), (speed_bps, shown), "{line_rate:?} {speed:?}");
            assert_eq!(host.line_rate.as_deref(), line_rate);
        }
    }
}
