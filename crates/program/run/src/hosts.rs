//! Connects to the hosts of a plan: builds labs, starts agents, compares clocks.

use std::{
    collections::BTreeMap,
    env,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    process::Command,
};

use anyhow::Context as _;
use fathom_fleet::{AgentStream, ErrorClass, Fleet, launcher, tls::Key};
use fathom_lab::{DeviceRecord, Entry, Journal, Lab, LabName, Options, StateFolder, device, preset};
use fathom_model::{
    Environment, Plan,
    plan::{HostReach, LabPlan},
};
use fathom_sys::process::{ProcessIdentity, affinity};

use crate::{
    device_programs::PacketPrograms,
    exit::{Exit, UserError, lab_error, with_privilege_hint},
    registry, target,
};

/// Returns the path of this program, to start it again as an agent or as the holder of a lab.
pub fn own_program() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot find this program's own file")
}

/// Returns the command that starts this program as the holder of a lab.
pub fn holder_program() -> anyhow::Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(["lab", "hold"]);
    Ok(command)
}

/// Returns the command that starts this program as the guard of a fault.
pub fn guard_program() -> anyhow::Result<Command> {
    let mut command = Command::new(own_program()?);
    command.args(["lab", "guard"]);
    Ok(command)
}

/// Converts an error of the fleet into a user error.
pub fn fleet_error(error: &fathom_fleet::Error) -> UserError {
    let exit = match error.class() {
        ErrorClass::Usage => Exit::Usage,
        ErrorClass::Preflight => Exit::Preflight,
        ErrorClass::Failed => Exit::Failed,
        ErrorClass::Incomplete => Exit::Incomplete,
    };
    let mut user_error = UserError::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        user_error = user_error.with_causes(cause);
    }
    if let fathom_fleet::Error::RoleFailed { failure, .. } = error {
        user_error = failure.causes.iter().fold(user_error, |user_error, cause| user_error.with_line("why", cause));
        if failure.message.contains(" needs CAP_") {
            user_error = with_privilege_hint(user_error, &failure.message);
        }
    }
    match error.hint() {
        Some(hint) => user_error.with_line("fix", hint),
        None => user_error,
    }
}

/// A host on the path under test.
#[derive(Debug, Clone)]
pub struct PathHost {
    /// Its address on the path.
    pub address: IpAddr,
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

/// The connected hosts of a plan. Dropping this removes the labs and agents that were created for them.
pub struct Hosts {
    pub fleet: Fleet,
    pub by_name: BTreeMap<String, PathHost>,
    // Dropped after the fleet: agents end before their namespaces are removed, and the journal is finished last.
    labs: Vec<Lab>,
    journal: Journal,
}

impl Hosts {
    /// Builds the plan's lab, starts an agent on every host, and records the agents in the journal of this run.
    pub fn connect(plan: &Plan, run_id: &str) -> anyhow::Result<Self> {
        let state = StateFolder::from_environment().map_err(|error| lab_error(&error))?;
        let name: LabName = run_id.parse().map_err(|error| lab_error(&error))?;
        let journal = Journal::begin(&state, &name).map_err(|error| lab_error(&error))?;
        let mut hosts = Self { fleet: Fleet::new(registry::TOOL), by_name: BTreeMap::new(), labs: Vec::new(), journal };
        let own_lab = plan.lab.as_ref().map(build_lab).transpose()?;
        let mut other_labs = BTreeMap::new();
        for (name, reach) in &plan.hosts {
            let (link, place) = match reach {
                HostReach::This => local_agent(own_address(plan)?)?,
                HostReach::At(address) => local_agent(*address)?,
                HostReach::Lab(host) => {
                    let lab = own_lab.as_ref().ok_or_else(|| no_lab_error(name))?;
                    lab_agent(lab, host, plan.lab.as_ref().map_or("", |lab| &lab.preset))?
                }
                HostReach::LabUp(lab_name, host) => {
                    if !other_labs.contains_key(lab_name) {
                        let parsed: LabName = lab_name.parse().map_err(|error| lab_error(&error))?;
                        let lab = Lab::find(&state, &parsed).map_err(|error| lab_error(&error))?;
                        other_labs.insert(lab_name.clone(), lab);
                    }
                    lab_agent(&other_labs[lab_name], host, lab_name)?
                }
                HostReach::Tls { address, key } => served_agent(address, key.as_deref())?,
            };
            hosts.add(name, link, place)?;
        }
        hosts.labs.extend(own_lab);
        hosts.labs.extend(other_labs.into_values());
        Ok(hosts)
    }

    fn add(&mut self, name: &str, link: AgentStream, place: PathHost) -> anyhow::Result<()> {
        if let Some(process) = &link.process {
            let agent = ProcessIdentity::of(process.id()).context("an agent ended as soon as it was started")?;
            self.journal.record(Entry::Process(agent)).map_err(|error| lab_error(&error))?;
        }
        self.fleet.connect(name, link).map_err(|error| fleet_error(&error))?;
        self.by_name.insert(name.to_owned(), place);
        Ok(())
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
        let interfaces: Vec<String> = self.by_name[name].interface.iter().cloned().collect();
        let mut environment = self.fleet.environment(name, &interfaces)?;
        if let Some(device) = &self.by_name[name].device {
            describe(device, &mut environment);
        }
        let place = self.by_name.get_mut(name).expect("a connected host has its place");
        place.allowed_cores = environment.get("cpu", "allowed").and_then(core_list);
        if place.interface.is_none() {
            let address = place.address.to_string();
            let has_it = |facts: &BTreeMap<String, String>| {
                facts.get("addresses").is_some_and(|addresses| addresses.split(' ').any(|one| one == address))
            };
            let found = environment.0.iter().find(|(_, facts)| has_it(facts)).map(|(topic, _)| topic.clone());
            // Loopback answers for addresses that are not configured on it.
            place.interface = found.or_else(|| place.address.is_loopback().then(|| "lo".to_owned()));
        }
        Ok(environment)
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

    /// Ends all agents, removes labs and finishes the journal.
    pub fn close(self) -> anyhow::Result<()> {
        let Self { fleet, labs, journal, .. } = self;
        drop(fleet);
        drop(labs);
        journal.finish().map_err(|error| lab_error(&error).into())
    }
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

fn no_lab_error(host: &str) -> UserError {
    UserError::new(Exit::Usage, format!("host `{host}` is in a lab, and the plan has none"))
        .with_line("use", "[lab] preset = \"pair\"")
}

/// Returns the core for a device: the last one, if another remains for the sender.
pub fn device_core() -> Option<usize> {
    let cores = affinity::allowed_cores().unwrap_or_default();
    cores.last().copied().filter(|_| cores.len() > 1)
}

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
    let preset = preset::find(&plan.preset).map_err(|error| lab_error(&error))?;
    let mut options = Options { device_core: device_core(), ..Options::default() };
    if let Some(mtu_bytes) = plan.mtu_bytes {
        options.mtu_bytes = mtu_bytes;
    }
    options.device = plan.device.as_deref().map(str::parse).transpose().map_err(|error| lab_error(&error))?;
    Lab::build_with(preset, &options, holder_program()?, &PacketPrograms).map_err(|error| {
        lab_error(&error)
            .with_line("try", "fathom doctor        # what this machine allows, and how to allow the rest")
            .into()
    })
}

fn local_agent(address: IpAddr) -> anyhow::Result<(AgentStream, PathHost)> {
    let link = launcher::self_exec(&own_program()?).map_err(|error| fleet_error(&error))?;
    let place = PathHost {
        address,
        interface: None,
        further_interfaces: Vec::new(),
        device: None,
        is_on_this_machine: true,
        allowed_cores: None,
        unavailable: Vec::new(),
    };
    Ok((link, place))
}

/// Returns the address of this machine on the path under test: its source address towards a served host or the target of a test, or
/// loopback.
fn own_address(plan: &Plan) -> anyhow::Result<IpAddr> {
    let served = plan.hosts.values().find_map(|reach| match reach {
        HostReach::Tls { address, .. } => Some(address),
        _ => None,
    });
    // The test itself reports a target without a route.
    let towards_target = || plan.tests.iter().find_map(|test| source_address_towards(&target::destination(test)?));
    served.map_or_else(
        || Ok(towards_target().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
        |address| address_towards(address),
    )
}

/// Returns the source address towards the first routable address of a host.
fn source_address_towards(host: &str) -> Option<IpAddr> {
    target::resolve(host).ok()?.into_iter().find_map(|address| fathom_probe::source_address_for(address).ok())
}

/// Returns the source address of packets to `target`. Sends nothing.
fn address_towards(target: &str) -> anyhow::Result<IpAddr> {
    let target = resolve(target)?;
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    routed.map(|address| address.ip()).map_err(|error| {
        UserError::new(Exit::Preflight, format!("there is no route to {}", target.ip()))
            .with_line("why", error.to_string())
            .with_line("try", format!("ip route get {}", target.ip()))
            .into()
    })
}

fn resolve(address: &str) -> Result<SocketAddr, UserError> {
    use std::net::ToSocketAddrs as _;
    let unknown =
        |why: String| UserError::new(Exit::Preflight, format!("there is no host at `{address}`")).with_line("why", why);
    let mut found = address.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has no address".to_owned()))
}

fn lab_agent(lab: &Lab, host: &str, lab_name: &str) -> anyhow::Result<(AgentStream, PathHost)> {
    let host = lab.host(host).map_err(|error| lab_error(&error))?;
    let reached = format!("namespace {} of lab {lab_name}", host.name());
    let link = launcher::namespace(&own_program()?, host.namespaces(), reached).map_err(|error| fleet_error(&error))?;
    let mut interfaces = host.interfaces().iter().map(|interface| interface.name.clone());
    let device = lab.device().filter(|_| host.name().as_str() == device::HOST).cloned();
    let losses = lab.losses().iter().map(|loss| format!("{}: {}", loss.what, loss.why));
    let place = PathHost {
        address: host.address(),
        interface: interfaces.next(),
        further_interfaces: interfaces.collect(),
        is_on_this_machine: true,
        allowed_cores: None,
        unavailable: losses.chain(device.iter().flat_map(|device| device.losses.clone())).collect(),
        device,
    };
    Ok((link, place))
}

fn served_agent(address: &str, key: Option<&str>) -> anyhow::Result<(AgentStream, PathHost)> {
    let key = key.ok_or_else(|| {
        UserError::new(Exit::Preflight, format!("{address} answers only to its key")).with_line(
            "use",
            "the key that `fathom serve` printed there: key = \"…\" in the plan, --key, --key-file or FATHOM_KEY",
        )
    })?;
    let key: Key = key.parse().map_err(|error| fleet_error(&error))?;
    let at = resolve(address)?;
    let link = launcher::tls(&at.to_string(), &key).map_err(|error| fleet_error(&error))?;
    Ok((
        link,
        PathHost {
            address: at.ip(),
            interface: None,
            further_interfaces: Vec::new(),
            device: None,
            is_on_this_machine: false,
            allowed_cores: None,
            unavailable: Vec::new(),
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_fewer_cores_gets_those_that_it_may_use() {
        let cores = |given: &[usize], allowed: &str| allowed_of(given.to_vec(), &core_list(allowed).unwrap());
        assert_eq!(cores(&[0, 1], "0-3"), [0, 1]);
        assert_eq!(cores(&[0, 1], "1,3"), [1]);
        assert_eq!(cores(&[1], "0"), [0], "none of its half is left");
        assert_eq!(cores(&[], "0"), [0; 0], "the scheduler chooses");
    }

    #[test]
    fn a_list_of_cores_is_read_as_the_kernel_writes_it() {
        assert_eq!(core_list("0-2,7"), Some(vec![0, 1, 2, 7]));
        for wrong in ["", "a", "3-1", "0-99999999"] {
            assert_eq!(core_list(wrong), None, "{wrong}");
        }
    }
}
