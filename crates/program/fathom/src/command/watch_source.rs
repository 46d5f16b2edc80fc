//! The host of `fathom watch`: the counters of this host, or those that an agent reads on another one.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, value_parser};
use fathom_model::{Environment, Plan, plan::HostReach, units::Nanos};
use fathom_monitor::{environment, interfaces};
use fathom_run::{
    exit::{Exit, UserError},
    hosts::{Hosts, fleet_error},
    inventory, store,
};
use fathom_sys::clock;
use fathom_watch::{ChangeReader, JUDGED, LiveReadings, LiveTables, Sampler, Samples};

use super::measurement;

/// Options that name another host.
const ELSEWHERE: [&str; 5] = ["host", "lab", "hosts", "key", "key-file"];

/// Returns the options that name the host.
pub(super) fn arguments() -> Vec<Arg> {
    let value =
        |name: &'static str, of: &'static str, help: &'static str| Arg::new(name).long(name).value_name(of).help(help);
    vec![
        value("host", "HOST", "watch a host that runs `fathom serve`, a host of --hosts, or a host of --lab"),
        value("hosts", "FILE", "the inventory of --host")
            .requires("host")
            .conflicts_with("lab")
            .value_parser(value_parser!(PathBuf)),
        value("lab", "NAME", "the lab of --host, which is up").requires("host").conflicts_with_all(["key", "key-file"]),
        value("key", "KEY", "the key that `fathom serve` printed on --host; FATHOM_KEY keeps it off the command line")
            .requires("host"),
        value("key-file", "FILE", "read the key of --host from this file")
            .requires("host")
            .conflicts_with("key")
            .value_parser(value_parser!(PathBuf)),
    ]
}

/// The names of these options, which a recording does not need.
pub(super) const fn argument_names() -> [&'static str; 5] {
    ELSEWHERE
}

/// Returns the way to a host with `fathom serve`, or to this one by an address of its loopback.
fn served(host: &str, matches: &ArgMatches) -> Result<HostReach, UserError> {
    let found = measurement::hosts_at_target(host, matches);
    if matches!(&found, Err(error) if error.exit == Exit::Preflight) && measurement::key(matches)?.is_none() {
        return Err(UserError::new(Exit::Preflight, format!("the counters of {host} are read with its key"))
            .with_line("fix", format!("fathom serve        # on {host}: prints a key"))
            .with_line("then", format!("{} --key KEY", measurement::command_line())));
    }
    let (_, reach) = found?.hosts.pop().expect("a target has a host");
    Ok(reach)
}

/// A host whose counters are read.
pub(super) struct NamedSource {
    pub(super) name: String,
    pub(super) environment: Environment,
    pub(super) source: CounterSource,
}

/// Who reads the counters.
pub(super) enum CounterSource {
    Here { sampler: Sampler, readings: Box<LiveReadings> },
    Agent(Box<AgentSource>),
}

/// An agent on another host, or in a namespace of this one.
pub(super) struct AgentSource {
    hosts: Hosts,
    name: String,
    changes: ChangeReader,
    tables: Option<LiveTables>,
    losses: Vec<String>,
}

impl NamedSource {
    /// Opens the host that the options name, or this one.
    pub(super) fn open(matches: &ArgMatches) -> anyhow::Result<Self> {
        let Some(host) = matches.get_one::<String>("host") else { return Ok(Self::here()) };
        let lab = matches.get_one::<String>("lab");
        let reach = match (lab, matches.get_one::<PathBuf>("hosts")) {
            (Some(lab), _) => HostReach::LabUp(lab.clone(), host.clone()),
            (None, Some(file)) => {
                let read = inventory::read(file)?;
                let mut reach = read.reach(&inventory::host(&read.inventory, host, file)?.0)?;
                measurement::complete_hosts(std::iter::once(&mut reach), matches)?;
                reach
            }
            (None, None) => served(host, matches)?,
        };
        let hosts = BTreeMap::from([(host.clone(), reach)]);
        let plan = Plan { hosts, ..Plan::new(format!("watch {host}"), Vec::new()) };
        let mut hosts = Hosts::connect_to_watch(&plan, &store::run_id(&jiff::Zoned::now(), clock::wall().0))?;
        let environment = hosts.environment(host).map_err(|error| fleet_error(&error))?;
        // The hosts of a lab share the name of this machine.
        let own = hosts.fleet.facts(host).map_err(|error| fleet_error(&error))?.hostname.clone();
        let name = match lab {
            Some(lab) => format!("{host} of lab {lab}"),
            None => own.unwrap_or_else(|| host.clone()),
        };
        let (changes, losses) = (ChangeReader::default(), Vec::new());
        let source = AgentSource { hosts, name: host.clone(), changes, tables: None, losses };
        Ok(Self { name, environment, source: CounterSource::Agent(Box::new(source)) })
    }

    fn here() -> Self {
        let root = Path::new("/");
        let environment = environment(root, &interfaces().unwrap_or_default());
        let name = std::fs::read_to_string(root.join("proc/sys/kernel/hostname")).unwrap_or_default();
        let name = if name.trim().is_empty() { "this host".to_owned() } else { name.trim().to_owned() };
        let readings = Box::new(LiveReadings::new(root, JUDGED, clock::thread_cpu));
        Self { name, environment, source: CounterSource::Here { sampler: Sampler::new(root), readings } }
    }
}

impl CounterSource {
    /// Takes a sample.
    pub(super) fn sample(&mut self, samples: &mut Samples) -> anyhow::Result<()> {
        match self {
            Self::Here { sampler, readings } => {
                let now: Nanos = clock::now();
                sampler.sample(samples, now);
                readings.read(now, samples);
            }
            Self::Agent(agent) => agent.sample(samples)?,
        }
        Ok(())
    }

    /// The readings beside the counters, at the newest of these samples.
    pub(super) fn live(&self, samples: &Samples) -> Option<LiveTables> {
        match self {
            Self::Here { readings, .. } => Some(readings.tables(samples)),
            Self::Agent(agent) => agent.tables.clone(),
        }
    }

    /// Why values are missing, a sentence each.
    pub(super) fn losses(&self) -> Vec<String> {
        match self {
            Self::Here { sampler, .. } => sampler.losses().collect(),
            Self::Agent(agent) => agent.losses.clone(),
        }
    }

    /// Ends the agent, if there is one.
    pub(super) fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Here { .. } => Ok(()),
            Self::Agent(agent) => agent.hosts.close(),
        }
    }
}

/// An agent of an earlier version reads counters only.
const COUNTERS_ONLY: &str = "the agent tells no connections, listeners, programs and queues: its version may be older";

impl AgentSource {
    fn sample(&mut self, samples: &mut Samples) -> anyhow::Result<()> {
        let mut changes = self.hosts.fleet.counters(&self.name).map_err(|error| fleet_error(&error))?;
        self.losses = std::mem::take(&mut changes.losses);
        self.tables = changes.beside.take().and_then(|text| serde_json::from_str(&text).ok());
        if self.tables.is_none() {
            self.losses.push(COUNTERS_ONLY.to_owned());
        }
        self.changes.add(changes, samples).map_err(|error| {
            UserError::new(Exit::Failed, format!("the agent on {} sent counters that do not fit", self.name))
                .with_line("why", error.to_string())
        })?;
        Ok(())
    }
}
