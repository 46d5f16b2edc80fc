//! Connects to the hosts of a plan: builds labs, starts agents, compares clocks.

mod agents;
mod heads;
mod own_address;
mod paths;
mod plan_pods;

use std::{collections::BTreeMap, env, net::IpAddr, path::Path, process::Command};

use anyhow::Context as _;
use fathom_fleet::{
    AgentStream, ErrorClass, Fleet, HostClaims, HostLink, MemberLink, launcher::kubernetes::Pods, protocol::Member,
};
use fathom_lab::{DeviceRecord, Entry, Journal, Lab, LabName, Options, StateFolder, preset};
use fathom_model::{
    Environment, Plan,
    plan::{HostReach, LabPlan},
};
use fathom_monitor::{DEFAULT_ROUTE, UNREAD};
use fathom_sys::{
    netlink::namespace::Namespaces,
    process::{ProcessIdentity, affinity, effective_user, own_program},
};

pub(crate) use self::agents::address_towards;
use self::{
    heads::Heads,
    own_address::ToldAddress,
    paths::{Positions, UnknownAddress},
};
use crate::{
    allow::AllowList,
    device_programs::PacketPrograms,
    exit::{Exit, UserError, lab_error, with_privilege_hint},
    registry,
};

/// Returns the command that starts this program as the holder of a lab.
#[must_use]
pub fn holder_program() -> Command {
    let mut command = Command::new(own_program::path());
    command.args(["lab", "hold"]);
    command
}

/// Returns the command that starts this program as the guard of a fault.
#[must_use]
pub fn guard_program() -> Command {
    let mut command = Command::new(own_program::path());
    command.args(["lab", "guard"]);
    command
}

/// Converts an error of the fleet into a user error.
pub fn fleet_error(error: &fathom_fleet::Error) -> UserError {
    let exit = match error.class() {
        ErrorClass::Usage => Exit::Usage,
        ErrorClass::Preflight => Exit::Preflight,
        ErrorClass::Failed => Exit::Failed,
        ErrorClass::Incomplete => Exit::Incomplete,
    };
    let text = error.to_string();
    let mut lines = text.lines();
    let mut user_error = UserError::new(exit, lines.next().unwrap_or_default());
    // What the launcher of an agent has written.
    user_error = lines.fold(user_error, |user_error, line| user_error.with_line("why", line));
    if let Some(cause) = std::error::Error::source(error) {
        user_error = user_error.with_causes(cause);
    }
    if let fathom_fleet::Error::BehindHead { failure, .. } = error {
        user_error = failure.causes.iter().fold(user_error, |user_error, cause| user_error.with_line("why", cause));
    }
    if let fathom_fleet::Error::RoleFailed { failure, .. } = error {
        user_error = failure.causes.iter().fold(user_error, |user_error, cause| user_error.with_line("why", cause));
        if failure.message.contains(" needs CAP_") {
            user_error = with_privilege_hint(user_error, &failure.message);
        }
    }
    let fixes = error.hint().into_iter().flat_map(str::lines);
    fixes.fold(user_error, |user_error, fix| user_error.with_line("fix", fix))
}

/// A host on the path under test.
#[derive(Debug, Clone)]
pub struct PathHost {
    /// Its address on the path.
    pub address: IpAddr,
    /// The address at which its agent answered, if the way to it shows that.
    pub reached_at: Option<IpAddr>,
    /// Its interface on the path, once known.
    pub interface: Option<String>,
    /// Its other interfaces on the path, if it connects two links.
    pub further_interfaces: Vec<String>,
    /// The device, if the host is a device of a lab.
    pub device: Option<DeviceRecord>,
    /// True if it shares the cores of this machine.
    pub is_on_this_machine: bool,
    /// The cores that its programs may use, by the kernel's numbers, once its environment is known.
    pub allowed_cores: Option<Vec<usize>>,
    /// The features that are not available on the host.
    pub unavailable: Vec<String>,
}

/// Whether other runs may use the hosts at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostUse {
    /// Measures, so no other run may.
    Exclusive,
    /// Only looks.
    Shared,
}

/// The connected hosts of a plan. Dropping this removes the labs and agents that were created for them.
pub struct Hosts {
    pub fleet: Fleet,
    pub by_name: BTreeMap<String, PathHost>,
    positions: Positions,
    /// Addresses of this machine on paths that a served host may not know.
    unknown: Vec<UnknownAddress>,
    // Dropped after the fleet: agents end before their pods and namespaces are removed, and the journal is finished last.
    pods: Option<Pods>,
    labs: PlanLabs,
    journal: Journal,
}

impl Hosts {
    /// Builds the plan's lab, starts an agent on every host at once, and records the agents in the journal of this run.
    ///
    /// Hosts behind `ssh` and other commands are held for this run: another run on them is refused until this one ends.
    /// Once `is_stopped` says so, all hosts are given up, and the outcome is an error.
    /// A host whose address is neither its own nor in `allowed` is refused.
    pub fn connect(
        plan: &Plan,
        run_id: &str,
        allowed: &AllowList,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Self> {
        let (hosts, mut errors) = Self::connect_each(plan, run_id, HostUse::Exclusive, is_stopped)?;
        errors.extend(hosts.check_addresses(plan, allowed));
        hosts.if_ready(errors, plan, is_stopped)
    }

    /// As [`Self::connect`], but only to look: runs on the same hosts are not refused, and nothing is sent to their addresses.
    pub fn connect_to_watch(plan: &Plan, run_id: &str) -> anyhow::Result<Self> {
        let (hosts, errors) = Self::connect_each(plan, run_id, HostUse::Shared, &|| false)?;
        hosts.if_ready(errors, plan, &|| false)
    }

    fn if_ready(
        self,
        errors: BTreeMap<String, UserError>,
        plan: &Plan,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Self> {
        if is_stopped() {
            return Err(fleet_error(&fathom_fleet::Error::Interrupted).into());
        }
        if errors.is_empty() { Ok(self) } else { Err(not_ready(errors, plan.hosts.len()).into()) }
    }

    /// Returns the errors of the connected hosts whose addresses on the path are neither their own nor allowed.
    pub fn check_addresses(&self, plan: &Plan, allowed: &AllowList) -> BTreeMap<String, UserError> {
        let check = |(name, place): (&String, &PathHost)| {
            let own = self.own_addresses(name);
            let reach = &plan.hosts[name];
            let told = ToldAddress { name, reach, address: place.address, reached_at: place.reached_at, own: &own };
            told.check(allowed).err().map(|error| (name.clone(), error))
        };
        self.by_name.iter().filter_map(check).collect()
    }

    /// Returns the addresses of the interfaces of a host, as its agent says.
    fn own_addresses(&self, name: &str) -> Vec<IpAddr> {
        self.fleet.facts(name).ok().and_then(|facts| facts.addresses.clone()).unwrap_or_default()
    }

    /// Connects to as many hosts as possible. Returns the errors of the others, by name.
    pub fn connect_each(
        plan: &Plan,
        run_id: &str,
        host_use: HostUse,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<(Self, BTreeMap<String, UserError>)> {
        let state = StateFolder::from_environment().map_err(|error| lab_error(&error))?;
        let name: LabName = run_id.parse().map_err(|error| lab_error(&error))?;
        tell_leftovers(&state);
        let journal = Journal::begin(&state, &name).map_err(|error| lab_error(&error))?;
        let heads = Heads::of(plan)?;
        let fleet = Fleet::new(registry::TOOL);
        let mut hosts = Self {
            fleet,
            by_name: BTreeMap::new(),
            positions: Positions::new(),
            unknown: Vec::new(),
            pods: None,
            labs: PlanLabs::default(),
            journal,
        };
        let (labs, mut errors) = PlanLabs::of(plan, &state)?;
        let run = (host_use == HostUse::Exclusive).then(|| run_name(run_id));
        // A served host has a limit of controllers, and hosts of this machine belong to its user.
        let is_held =
            |reach: &HostReach| matches!(reach, HostReach::Ssh(_) | HostReach::Exec(_) | HostReach::Kubernetes(_));
        let run_of = |reach: &HostReach| run.clone().filter(|_| is_held(reach));
        // First, since they take long, and an agent elsewhere does not wait for that.
        let pods = plan_pods::start(plan, run_id, host_use).map_err(|failure| agents::pod_error(None, &failure))?;
        let lacking: Vec<String> = errors.keys().cloned().collect();
        let is_direct = |name: &str| heads.is_direct(name) && !lacking.iter().any(|one| one == name);
        let starting = agents::Starting { plan, labs: &labs, pods: pods.as_ref(), is_direct: &is_direct };
        let places = hosts.start_direct(starting, &run_of, is_stopped, &mut errors)?;
        hosts.pods = pods;
        // A run without one of its hosts does not take the others from other runs. They are greeted all the same, to tell all errors.
        let claims = if errors.is_empty() { HostClaims::Made } else { HostClaims::Left };
        errors.extend(hosts.greet(plan, places, claims, run.as_deref(), is_stopped));
        if errors.is_empty() {
            let member = |name: &str, reach: &HostReach| agents::member(name, reach, plan, &labs);
            match heads.links(plan, member, run_of) {
                Ok(links) => errors.extend(hosts.connect_behind(plan, links, is_stopped)),
                Err(wrong) => errors.extend(wrong),
            }
        }
        hosts.labs = labs;
        hosts.name_same_machines(&mut errors);
        Ok((hosts, errors))
    }

    /// Starts the agents that no head starts. Returns the places of those that run; the errors of the others are added.
    fn start_direct(
        &mut self,
        starting: agents::Starting<'_>,
        run_of: &dyn Fn(&HostReach) -> Option<String>,
        is_stopped: &dyn Fn() -> bool,
        errors: &mut BTreeMap<String, UserError>,
    ) -> anyhow::Result<BTreeMap<String, PathHost>> {
        let (plan, mut places) = (starting.plan, BTreeMap::new());
        starting.start_all(is_stopped, |name, started| {
            let (stream, place) = match started {
                Ok(started) => started,
                Err(error) => {
                    errors.insert(name, error);
                    return Ok(());
                }
            };
            self.record(&stream)?;
            let reach = &plan.hosts[&name];
            let link = HostLink { name: name.clone(), stream, run: run_of(reach) };
            match self.fleet.begin(link) {
                Ok(()) => drop(places.insert(name, place)),
                Err(error) => {
                    let error = agents::start_error(&name, reach, &error, None);
                    errors.insert(name, error);
                }
            }
            Ok(())
        })?;
        Ok(places)
    }

    /// Names the other host in the errors of hosts that are the same machine as one of this run.
    fn name_same_machines(&self, errors: &mut BTreeMap<String, UserError>) {
        let identity = |name: &str| {
            let facts = self.fleet.facts(name).ok()?;
            Some((facts.boot_id.clone()?, facts.addresses.clone()?))
        };
        let held: Vec<(&String, _)> = self.by_name.keys().map(|name| (name, identity(name))).collect();
        for (name, error) in errors.iter_mut().filter(|(_, error)| error.what().ends_with(agents::SAME_MACHINE)) {
            let own = identity(name);
            let other = held.iter().find(|(_, one)| own.is_some() && *one == own);
            if let Some((other, _)) = other {
                let what = format!("host `{name}` is the same machine as host `{other}`");
                *error = UserError::new(error.exit, what).with_line("fix", "name each machine once");
            }
        }
    }

    /// Records an agent in the journal.
    fn record(&mut self, link: &AgentStream) -> anyhow::Result<()> {
        let Some(process) = &link.process else { return Ok(()) };
        let agent = ProcessIdentity::of(process.id()).context("an agent ended as soon as it was started")?;
        self.journal.record(Entry::Process(agent)).map_err(|error| lab_error(&error).into())
    }

    /// Waits for the greetings of all agents. Returns the errors of those that do not answer.
    fn greet(
        &mut self,
        plan: &Plan,
        places: BTreeMap<String, PathHost>,
        claims: HostClaims,
        run: Option<&str>,
        is_stopped: &dyn Fn() -> bool,
    ) -> BTreeMap<String, UserError> {
        let names: Vec<String> = places.keys().cloned().collect();
        let outcomes = self.fleet.finish(&names, claims, is_stopped);
        let mut errors = BTreeMap::new();
        for ((name, place), outcome) in places.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => drop(self.by_name.insert(name, place)),
                Err(error) => {
                    let error = agents::start_error(&name, &plan.hosts[&name], &error, run);
                    errors.insert(name, error);
                }
            }
        }
        errors
    }

    /// Connects to the hosts behind heads, at once. Returns the errors of those that cannot be reached.
    fn connect_behind(
        &mut self,
        plan: &Plan,
        links: Vec<(MemberLink, PathHost)>,
        is_stopped: &dyn Fn() -> bool,
    ) -> BTreeMap<String, UserError> {
        let (links, places): (Vec<MemberLink>, Vec<PathHost>) = links.into_iter().unzip();
        let members: Vec<Member> = links.iter().map(|link| link.member.clone()).collect();
        let mut errors = BTreeMap::new();
        let outcomes = self.fleet.connect_behind(links, is_stopped);
        for ((member, place), outcome) in members.into_iter().zip(places).zip(outcomes) {
            let Member { name, run, .. } = member;
            match outcome {
                Ok(()) => drop(self.by_name.insert(name, place)),
                Err(error) => {
                    let error = agents::start_error(&name, &plan.hosts[&name], &error, run.as_deref());
                    errors.insert(name, error);
                }
            }
        }
        errors
    }

    /// Adds what could not be observed on a host, each sentence once.
    pub fn add_unavailable(&mut self, name: &str, losses: Vec<String>) {
        let Some(place) = self.by_name.get_mut(name) else { return };
        for loss in losses {
            if !place.unavailable.contains(&loss) {
                place.unavailable.push(loss);
            }
        }
    }

    /// Queries the environment of a host and finds the interface with its address.
    pub fn environment(&mut self, name: &str) -> Result<Environment, fathom_fleet::Error> {
        self.environments(&[name.to_owned()]).pop().expect("each host has an answer")
    }

    /// Queries the environments of several hosts at once and finds the interfaces with their addresses. The answers are in the order of
    /// the names.
    pub fn environments(&mut self, names: &[String]) -> Vec<Result<Environment, fathom_fleet::Error>> {
        let answers = self.fleet.environments(names);
        names.iter().zip(answers).map(|(name, answer)| Ok(self.with_place(name, answer?))).collect()
    }

    /// Adds what only this program knows about a host to its environment, and learns from it where the host is on the path.
    fn with_place(&mut self, name: &str, mut environment: Environment) -> Environment {
        if let Some(device) = &self.by_name[name].device {
            describe(device, &mut environment);
        }
        let place = self.by_name.get_mut(name).expect("a connected host has its place");
        if place.is_on_this_machine {
            fathom_monitor::note_machine_settings(Path::new("/"), &mut environment);
        }
        place.allowed_cores = environment.get("cpu", "allowed").and_then(core_list);
        if place.interface.is_none() {
            place.interface = interface_of(place.address, place.is_on_this_machine, &environment);
        }
        // A fact tells it in the answer of an agent, and a loss of the host to who reads the run. Other interfaces than that of the test have nothing
        // to do with it.
        let topics = [Some(registry::INTERFACES), place.interface.as_deref()];
        let unread = topics
            .into_iter()
            .flatten()
            .filter_map(|topic| environment.get(topic, UNREAD).map(|why| format!("{topic}: {why}")));
        let unread: Vec<String> = unread.filter(|loss| !place.unavailable.contains(loss)).collect();
        place.unavailable.extend(unread);
        environment
    }

    /// Returns the cores for the two sides of a test: a half of this machine each if both sides run on it, all of it if only `from` does.
    ///
    /// A device between them keeps its core to itself if there are enough others. With only one other core, the responder shares the
    /// core of the device, because the initiator determines the offered load.
    /// An empty list leaves the choice to the scheduler, for a host whose cores this program does not assign.
    /// A host whose control group has fewer cores gets those.
    pub fn cores(&self, from: &str, to: Option<&str>) -> (Vec<usize>, Vec<usize>) {
        let (initiator, responder) = self.halves(from, to);
        let of_host = |name: &str, cores| {
            let allowed = self.by_name.get(name).and_then(|place| place.allowed_cores.as_deref());
            match allowed {
                Some(allowed) => allowed_of(cores, allowed),
                None => cores,
            }
        };
        (of_host(from, initiator), to.map_or_else(Vec::new, |to| of_host(to, responder)))
    }

    fn halves(&self, from: &str, to: Option<&str>) -> (Vec<usize>, Vec<usize>) {
        let all = affinity::allowed_cores().unwrap_or_default();
        let is_here = |name: &str| self.by_name.get(name).is_some_and(|place| place.is_on_this_machine);
        if !is_here(from) {
            return (Vec::new(), Vec::new());
        }
        if !to.is_some_and(is_here) {
            return (all, Vec::new());
        }
        let taken = self.by_name.values().find_map(|place| place.device.as_ref()?.core);
        if let Some(taken) = taken {
            let left: Vec<usize> = all.iter().copied().filter(|core| *core != taken).collect();
            return match left.split_at(left.len().div_ceil(2)) {
                ([], _) => (vec![taken], vec![taken]),
                (initiator, []) => (initiator.to_vec(), vec![taken]),
                (initiator, responder) => (initiator.to_vec(), responder.to_vec()),
            };
        }
        match all.split_at(all.len() / 2) {
            ([], only) => (only.to_vec(), only.to_vec()),
            (initiator, responder) => (initiator.to_vec(), responder.to_vec()),
        }
    }

    /// Opens the namespaces of a host that is in a lab.
    pub fn namespaces(&self, plan: &Plan, name: &str) -> Result<Namespaces, UserError> {
        let inside = match plan.hosts.get(name) {
            Some(HostReach::Lab(inside) | HostReach::LabUp(_, inside)) => inside,
            Some(_) => return Err(UserError::new(Exit::Usage, format!("host `{name}` is not in a lab"))),
            // A host of the lab that is no end of a test.
            None => name,
        };
        let host = self.labs.all().find_map(|lab| lab.host(inside).ok()).ok_or_else(|| {
            let hosts = self.labs.all().flat_map(Lab::hosts).map(|host| host.name().to_string());
            UserError::new(Exit::Usage, format!("`{name}` is not a host of a lab of this plan"))
                .with_line("hosts", hosts.collect::<Vec<_>>().join(", "))
        })?;
        host.namespaces()
            .try_clone()
            .map_err(|error| UserError::new(Exit::Failed, format!("cannot enter host `{name}`")).with_causes(&error))
    }

    /// Ends all agents, removes pods and labs, and finishes the journal.
    pub fn close(self) -> anyhow::Result<()> {
        let Self { fleet, pods, labs, journal, .. } = self;
        drop(fleet);
        if let Some(failure) = pods.and_then(|pods| pods.delete().err()) {
            // The run has its result, and the Jobs end by themselves.
            eprintln!("note: the Jobs of this run are not deleted: {failure}; they go within five minutes");
        }
        // Commands of events may have left some, which nobody could reach any more.
        for program in labs.own.iter().flat_map(Lab::end_programs) {
            eprintln!("note: {program}, with the lab");
        }
        drop(labs);
        journal.finish().map_err(|error| lab_error(&error).into())
    }
}

/// Says what killed runs left behind, if something is left. A folder that cannot be read fails with the journal of this run.
fn tell_leftovers(state: &StateFolder) {
    let left = fathom_lab::forget_ended(state).unwrap_or_default();
    if !left.is_empty() {
        let names: Vec<_> = left.iter().map(ToString::to_string).collect();
        eprintln!("note: killed before it could clean up: {}; undo it with: fathom lab down --stale", names.join(", "));
    }
}

/// The labs of a plan: the one that the run builds, and those that are up.
#[derive(Default)]
pub(crate) struct PlanLabs {
    own: Option<Lab>,
    up: BTreeMap<String, Lab>,
}

impl PlanLabs {
    /// Returns the labs, and the errors of the hosts whose lab is not up, by name.
    fn of(plan: &Plan, state: &StateFolder) -> anyhow::Result<(Self, BTreeMap<String, UserError>)> {
        let own = plan.lab.as_ref().map(build_lab).transpose()?;
        let (mut up, mut errors) = (BTreeMap::new(), BTreeMap::new());
        for (host, reach) in &plan.hosts {
            let HostReach::LabUp(name, _) = reach else { continue };
            if !up.contains_key(name) {
                match name.parse::<LabName>().and_then(|parsed| Lab::find(state, &parsed)) {
                    Ok(lab) => drop(up.insert(name.clone(), lab)),
                    Err(error) => drop(errors.insert(host.clone(), lab_error(&error))),
                }
            }
        }
        Ok((Self { own, up }, errors))
    }

    fn all(&self) -> impl Iterator<Item = &Lab> {
        self.own.iter().chain(self.up.values())
    }
}

/// Returns the manifests of the pods that a run of a plan would create, as YAML; none if no host is a pod.
pub fn manifests(plan: &Plan, run_id: &str, host_use: HostUse) -> Option<String> {
    plan_pods::request(plan, run_id, host_use).map(|request| request.manifest())
}

/// Returns the name of a run as its hosts show it to other runs.
fn run_name(run_id: &str) -> String {
    let word = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let user = env::var("LOGNAME").or_else(|_| env::var("USER"));
    let user = user.unwrap_or_else(|_| format!("user {}", effective_user()));
    format!("run {run_id} of {user} on {}", word("/proc/sys/kernel/hostname"))
}

/// Returns the error of a run whose hosts are not all ready.
fn not_ready(errors: BTreeMap<String, UserError>, n_hosts: usize) -> UserError {
    let n_errors = errors.len();
    let exit = errors.values().next().map_or(Exit::Preflight, |error| error.exit);
    let mut each = errors.into_iter();
    match each.next() {
        Some((name, only)) if n_errors == 1 => {
            let is_named = n_hosts <= 2 || only.what().contains(&format!("`{name}`"));
            if is_named { only } else { only.with_line("host", name) }
        }
        first => {
            let what = format!("{n_errors} of {n_hosts} hosts are not ready, so nothing was started");
            let all: Vec<(String, UserError)> = first.into_iter().chain(each).collect();
            let is_same = |one: &UserError, other: &UserError| {
                ["why", "fix"].into_iter().all(|label| one.line(label) == other.line(label))
            };
            // Hosts with the same cause and the same way out are told together.
            all.chunk_by(|(_, one), (_, other)| is_same(one, other)).fold(UserError::new(exit, what), with_hosts)
        }
    }
}

/// The most hosts with the same words in one line.
const SHOWN_HOSTS_MAX: usize = 8;

/// Adds hosts that are not ready for the same cause, with the way out.
fn with_hosts(user_error: UserError, hosts: &[(String, UserError)]) -> UserError {
    let mut told: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, error) in hosts {
        let what = error.what_without(name);
        match told.iter_mut().find(|(known, _)| *known == what) {
            Some((_, names)) => names.push(name),
            None => told.push((what, vec![name])),
        }
    }
    let line = |user_error: UserError, (what, names): (&str, Vec<&str>)| {
        let (n, first) = (names.len(), names[..names.len().min(SHOWN_HOSTS_MAX)].join(", "));
        let more = if n > SHOWN_HOSTS_MAX { format!(" and {} more", n - SHOWN_HOSTS_MAX) } else { String::new() };
        user_error.with_line("host", format!("{first}{more}: {what}"))
    };
    let user_error = told.into_iter().fold(user_error, line);
    let lines = ["why", "fix"].into_iter().filter_map(|label| Some((label, hosts.first()?.1.line(label)?)));
    lines.fold(user_error, |user_error, (label, line)| user_error.with_line(label, line))
}

/// Returns the cores of a list that a host may use; all that it may use if none of them is in the list.
fn allowed_of(cores: Vec<usize>, allowed: &[usize]) -> Vec<usize> {
    if cores.is_empty() || cores.iter().all(|core| allowed.contains(core)) {
        return cores;
    }
    let both: Vec<usize> = cores.into_iter().filter(|core| allowed.contains(core)).collect();
    if both.is_empty() { allowed.to_vec() } else { both }
}

/// Reads a list of cores in the kernel's format, such as `0-3,8` (cpuset(7)).
fn core_list(text: &str) -> Option<Vec<usize>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        // No machine has more cores; a longer range is no list of them.
        (first <= last && last < 1 << 16).then_some(first..=last)
    };
    let ranges = text.split(',').map(range).collect::<Option<Vec<_>>>()?;
    Some(ranges.into_iter().flatten().collect())
}

pub(crate) fn no_lab_error(host: &str) -> UserError {
    UserError::new(Exit::Usage, format!("host `{host}` is in a lab, and the plan has none"))
        .with_line("use", "[lab] preset = \"pair\"")
}

/// Returns the core for a device: the last one, if another remains for the sender.
pub fn device_core() -> Option<usize> {
    let cores = affinity::allowed_cores().unwrap_or_default();
    cores.last().copied().filter(|_| cores.len() > 1)
}

/// Returns the interface by which a host is reached at an address.
///
/// An address that none of its interfaces has, as behind the NAT of a cloud, or one that another machine has on its loopback device and announces,
/// is reached by the interface of its default route.
fn interface_of(address: IpAddr, is_on_this_machine: bool, environment: &Environment) -> Option<String> {
    // Loopback answers for addresses that are not configured on it.
    if address.is_loopback() {
        return Some(LOOPBACK.to_owned());
    }
    let with = |fact: &str, word: &str| {
        let has_it = |(name, facts): &(&String, &BTreeMap<String, String>)| {
            let is_reached = is_on_this_machine || *name != LOOPBACK;
            is_reached && facts.get(fact).is_some_and(|words| words.split(' ').any(|one| one == word))
        };
        environment.0.iter().find(has_it).map(|(name, _)| name.clone())
    };
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    with("addresses", &address.to_string()).or_else(|| with(DEFAULT_ROUTE, family))
}

/// The name of the loopback device.
const LOOPBACK: &str = "lo";

/// Adds the facts about a device that the reader of a result needs.
fn describe(record: &DeviceRecord, environment: &mut Environment) {
    environment.note("device", "is", record.device.to_string());
    if let Some(core) = record.core {
        environment.note("device", "core", core.to_string());
    }
    for thread in &record.threads {
        environment.note("device", &format!("threaded {}", thread.interface), "yes");
    }
}

fn build_lab(plan: &LabPlan) -> anyhow::Result<Lab> {
    let options = Options { device_core: device_core(), ..Options::default() };
    let (preset, mut options) = preset::chosen(&plan.preset, options).map_err(|error| lab_error(&error))?;
    if let Some(mtu_bytes) = plan.mtu_bytes {
        options.mtu_bytes = mtu_bytes;
    }
    options.has_direct_wire = plan.direct_wire;
    options.device = plan.device.as_deref().map(str::parse).transpose().map_err(|error| lab_error(&error))?;
    Lab::build_with(preset, &options, holder_program(), &PacketPrograms).map_err(|error| {
        lab_error(&error)
            .with_line("try", "fathom doctor        # what this machine allows, and how to allow the rest")
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_no_interface_has_is_reached_by_that_of_the_default_route() {
        let mut environment = Environment::default();
        for (name, addresses) in [("lo", "127.0.0.1 203.0.113.9"), ("ens5", "10.0.0.5"), ("ens6", "10.1.0.5 fd00::5")] {
            environment.note(name, "addresses", addresses);
        }
        let found =
            |environment: &Environment, address: &str| interface_of(address.parse().unwrap(), false, environment);
        assert_eq!(found(&environment, "198.51.100.7"), None);
        environment.note("ens5", DEFAULT_ROUTE, "ipv4");
        for (address, expected) in [
            ("10.1.0.5", Some("ens6")),
            ("198.51.100.7", Some("ens5")),
            ("203.0.113.9", Some("ens5")),
            ("127.0.0.9", Some("lo")),
            ("fd00::5", Some("ens6")),
            ("2001:db8::1", None),
        ] {
            assert_eq!(found(&environment, address).as_deref(), expected, "{address}");
        }
        let here = interface_of("203.0.113.9".parse().unwrap(), true, &environment);
        assert_eq!(here.as_deref(), Some("lo"), "packets to it do not leave the machine");
    }

    #[test]
    fn a_host_with_fewer_cores_gets_those_that_it_may_use() {
        let cores = |given: &[usize], allowed: &str| allowed_of(given.to_vec(), &core_list(allowed).unwrap());
        assert_eq!(cores(&[0, 1], "0-3"), [0, 1]);
        assert_eq!(cores(&[0, 1], "1,3"), [1]);
        assert_eq!(cores(&[1], "0"), [0], "none of its half is left");
        assert_eq!(cores(&[], "0"), [0; 0], "the scheduler chooses");
    }

    #[test]
    fn hosts_with_the_same_words_share_a_line() {
        let error = |name: &String| {
            UserError::new(Exit::Preflight, format!("host `{name}` is the same machine as host `m0`"))
                .with_line("fix", "x")
        };
        let names = (1..=20).map(|number| format!("m{number:02}"));
        let told = not_ready(names.map(|name| (name.clone(), error(&name))).collect(), 21).to_string();
        let line = "m01, m02, m03, m04, m05, m06, m07, m08 and 12 more: is the same machine as host `m0`";
        assert!(told.contains(line) && told.lines().count() == 3, "{told}");
    }

    #[test]
    fn a_list_of_cores_is_read_as_the_kernel_writes_it() {
        assert_eq!(core_list("0-2,7"), Some(vec![0, 1, 2, 7]));
        for wrong in ["", "a", "3-1", "0-99999999"] {
            assert_eq!(core_list(wrong), None, "{wrong}");
        }
    }
}
