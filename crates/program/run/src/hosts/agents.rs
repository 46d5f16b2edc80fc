//! Starts the agents of a plan's hosts: each one in its own way, those elsewhere all at once.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    process, thread,
};

use fathom_fleet::{
    AgentStream, Disconnected, Error, ErrorClass, ProcessEnd,
    launcher::{
        self,
        kubernetes::{self, PodFailure, Pods},
        ssh::{self, SshFailure},
    },
    protocol::MemberReach,
    tls::Key,
};
use fathom_lab::{Lab, device};
use fathom_model::{
    Plan,
    host_port::bracketed,
    kubernetes::KubernetesHost,
    plan::HostReach,
    reach::{ExecHost, SshHost},
};
use fathom_sys::process::signal;

use super::{PathHost, PlanLabs, fleet_error, no_lab_error, own_program};
use crate::{
    exit::{Exit, UserError, lab_error},
    target,
};

/// A started agent with its host, or the reason why there is none.
type StartedAgent = Result<(AgentStream, PathHost), UserError>;

/// Starts the agents of all hosts of a plan that are not behind a head. Connections to other machines are made at the same time. The pods run
/// already.
///
/// # Errors
/// If an agent on this machine cannot be started. Errors of other machines are in the result, so that all of them can be told.
pub(super) fn start_all(
    plan: &Plan,
    labs: &PlanLabs,
    pods: Option<&Pods>,
    is_direct: impl Fn(&str) -> bool,
) -> anyhow::Result<BTreeMap<String, StartedAgent>> {
    let mut started = BTreeMap::new();
    let agent_elsewhere = |name: &String, reach: &HostReach| match (reach, pods) {
        (HostReach::Kubernetes(host), Some(pods)) => pod_agent(name, host, pods),
        _ => agent_elsewhere(name, reach),
    };
    let direct = || plan.hosts.iter().filter(|(name, _)| is_direct(name));
    for (name, reach) in direct().filter(|(_, reach)| reach.is_on_this_machine()) {
        started.insert(name.clone(), Ok(agent_here(name, reach, plan, (labs, pods))?));
    }
    let elsewhere: Vec<_> = direct().filter(|(_, reach)| !reach.is_on_this_machine()).collect();
    if let [(name, reach)] = elsewhere.as_slice() {
        started.insert((*name).clone(), agent_elsewhere(name, reach));
        return Ok(started);
    }
    thread::scope(|scope| {
        let starting: Vec<_> = elsewhere
            .iter()
            .map(|&(name, reach)| {
                let start = move || agent_elsewhere(name, reach);
                (name, thread::Builder::new().spawn_scoped(scope, start))
            })
            .collect();
        for (name, thread) in starting {
            let outcome = match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(cause) => Err(no_thread_error(&cause)),
            };
            started.insert(name.clone(), outcome);
        }
    });
    Ok(started)
}

/// Returns how the head of a host reaches it, how that is shown, and its place on the path.
///
/// # Errors
/// If the host has no address on the path that is known here, or no key, or is a host of a lab that its head cannot enter.
pub(super) fn member(
    name: &str,
    reach: &HostReach,
    plan: &Plan,
    labs: &PlanLabs,
) -> Result<(MemberReach, String, PathHost), UserError> {
    let (lab, host, lab_name) = match reach {
        HostReach::Lab(host) => {
            let lab = labs.own.as_ref().ok_or_else(|| no_lab_error(name))?;
            (lab, host, plan.lab.as_ref().map_or("", |lab| &lab.preset))
        }
        HostReach::LabUp(lab, host) => (&labs.up[lab], host, lab.as_str()),
        HostReach::Ssh(host) => {
            let address = host.data.map_or_else(|| ssh_address(name, host), Ok)?;
            let reached = format!("ssh {}", ssh::destination(host));
            return Ok((MemberReach::Host(reach.clone()), reached, elsewhere(address)));
        }
        HostReach::Exec(host) => {
            return Ok((MemberReach::Host(reach.clone()), host.command.join(" "), elsewhere(host.data)));
        }
        HostReach::Tls { address, key: Some(_), data } => {
            let at = data.map_or_else(|| resolve(address).map(|at| at.ip()), Ok)?;
            return Ok((MemberReach::Host(reach.clone()), format!("tls {address}"), elsewhere(at)));
        }
        HostReach::Tls { address, .. } => return Err(no_key_error(address)),
        HostReach::This | HostReach::At(_) | HostReach::Kubernetes(_) | HostReach::Inventory(_) => {
            let what = format!("host `{name}` is reached from here only, not through a head");
            return Err(UserError::new(Exit::Usage, what).with_line("use", "a group without it, or leave out --heads"));
        }
    };
    let (place, reached) = lab_place(lab, host, lab_name)?;
    Ok((lab_reach(lab, host, &reached)?, reached, place))
}

fn no_key_error(address: &str) -> UserError {
    UserError::new(Exit::Preflight, format!("{address} answers only to its key")).with_line(
        "use",
        "the key that `fathom serve` printed there: key = \"…\" in the plan, --key, --key-file or FATHOM_KEY",
    )
}

fn no_thread_error(cause: &io::Error) -> UserError {
    UserError::new(Exit::Preflight, "cannot connect to all hosts at once")
        .with_line("why", cause.to_string())
        .with_line("fix", "raise the limit of tasks: ulimit -u, or pids.max of the container")
}

/// Starts the agent of a host that is on this machine.
fn agent_here(
    name: &str,
    reach: &HostReach,
    plan: &Plan,
    (labs, pods): (&PlanLabs, Option<&Pods>),
) -> anyhow::Result<(AgentStream, PathHost)> {
    match reach {
        HostReach::At(address) => local_agent(*address),
        HostReach::Lab(host) => {
            let lab = labs.own.as_ref().ok_or_else(|| no_lab_error(name))?;
            lab_agent(lab, host, plan.lab.as_ref().map_or("", |lab| &lab.preset))
        }
        HostReach::LabUp(lab, host) => lab_agent(&labs.up[lab], host, lab),
        _ => local_agent(own_address(plan, pods)?),
    }
}

/// Starts the agent of a host that is elsewhere.
fn agent_elsewhere(name: &str, reach: &HostReach) -> StartedAgent {
    match reach {
        HostReach::Tls { address, key, data } => served_agent(address, key.as_deref(), *data),
        HostReach::Ssh(host) => ssh_agent(name, host),
        HostReach::Exec(host) => exec_agent(name, host),
        _ => {
            let what = format!("host `{name}` is in an inventory, and no inventory is read");
            Err(UserError::new(Exit::Usage, what).with_line("use", "--hosts FILE"))
        }
    }
}

/// Returns the place of a host that is elsewhere.
fn elsewhere(address: IpAddr) -> PathHost {
    PathHost {
        address,
        interface: None,
        further_interfaces: Vec::new(),
        device: None,
        is_on_this_machine: false,
        allowed_cores: None,
        unavailable: Vec::new(),
    }
}

fn ssh_agent(name: &str, host: &SshHost) -> StartedAgent {
    let address = host.data.map_or_else(|| ssh_address(name, host), Ok)?;
    let program = own_program().map_err(|error| UserError::from_error(Exit::Preflight, &error))?;
    let reach = HostReach::Ssh(host.clone());
    let link = ssh::ssh(host, &program).map_err(|error| start_error(name, &reach, &error, None))?;
    Ok((link, elsewhere(address)))
}

/// Returns the address that `ssh` connects to, which is the address on the path under test unless the inventory has another one.
fn ssh_address(name: &str, host: &SshHost) -> Result<IpAddr, UserError> {
    let hostname = ssh::hostname(host).unwrap_or_else(|| host.address.clone());
    target::resolve(&hostname).ok().and_then(|found| found.first().copied()).ok_or_else(|| {
        UserError::new(Exit::Preflight, format!("host `{name}`: `{hostname}` has no address here")).with_line(
            "fix",
            "control = \"…\" with a name that is known here, or data = \"10.0.0.2\" if only ssh knows it",
        )
    })
}

fn exec_agent(name: &str, host: &ExecHost) -> StartedAgent {
    let reach = HostReach::Exec(host.clone());
    let link = launcher::exec(&host.command).map_err(|error| start_error(name, &reach, &error, None))?;
    Ok((link, elsewhere(host.data)))
}

fn pod_agent(name: &str, host: &KubernetesHost, pods: &Pods) -> StartedAgent {
    let pod = pods.of(name).as_ref().map_err(|failure| pod_error(Some(name), failure))?;
    let reach = HostReach::Kubernetes(Box::new(host.clone()));
    let link = kubernetes::attach(host, pod).map_err(|error| start_error(name, &reach, &error, None))?;
    Ok((link, elsewhere(host.data.unwrap_or(pod.address))))
}

/// Returns the error of a host that has no pod, or of all of them.
pub(super) fn pod_error(name: Option<&str>, failure: &PodFailure) -> UserError {
    let exit = match failure.class {
        ErrorClass::Usage => Exit::Usage,
        ErrorClass::Incomplete => signal::received().map_or(Exit::Incomplete, Exit::Signalled),
        ErrorClass::Preflight | ErrorClass::Failed => Exit::Preflight,
    };
    let what = name.map_or_else(|| failure.what.clone(), |name| format!("host `{name}`: {}", failure.what));
    let user_error = failure.why.iter().fold(UserError::new(exit, what), |error, why| error.with_line("why", why));
    if failure.fix.is_empty() { user_error } else { user_error.with_line("fix", failure.fix.clone()) }
}

/// Returns the error of a host without an agent, with the way out for its launcher. `run` is the name of this run on the host.
pub(super) fn start_error(name: &str, reach: &HostReach, error: &Error, run: Option<&str>) -> UserError {
    match (error, reach) {
        (Error::NoAgent { loss, end, .. }, HostReach::Ssh(host)) => ssh_error(name, host, loss, end),
        (Error::NoAgent { loss, end, .. }, HostReach::Exec(host)) => {
            let what = format!("host `{name}`: its command starts no agent: {loss}");
            let by_hand = format!("{} < /dev/null        # shows what the command does", shown_command(&host.command));
            explained(UserError::new(Exit::Preflight, what), end).with_line("fix", by_hand)
        }
        (Error::NoAgent { loss, end, .. }, HostReach::Kubernetes(host)) => {
            let what = format!("host `{name}`: no agent answers in its pod: {loss}");
            let fix = format!("an image with this version of fathom in place of {}", host.cluster.image);
            explained(UserError::new(Exit::Preflight, what), end).with_line("fix", fix)
        }
        (Error::Version { .. }, HostReach::Kubernetes(host)) => {
            fleet_error(error).with_line("or", format!("an image with this version in place of {}", host.cluster.image))
        }
        (Error::System { cause, .. }, HostReach::Exec(_) | HostReach::Ssh(_) | HostReach::Kubernetes(_)) => {
            let program = match reach {
                HostReach::Exec(host) => host.command.first().map_or("", String::as_str),
                HostReach::Kubernetes(_) => "kubectl",
                _ => "ssh",
            };
            UserError::new(Exit::Preflight, format!("host `{name}`: cannot start `{program}` here"))
                .with_line("why", cause.to_string())
                .with_line("fix", format!("install {program} on this machine, or name another launcher"))
        }
        (Error::Push { reason, hint, .. }, _) => {
            let what = format!("host `{name}`: fathom cannot be copied there");
            UserError::new(Exit::Preflight, what).with_line("why", reason.clone()).with_line("fix", hint.clone())
        }
        (Error::Word { cause, .. }, _) => UserError::new(Exit::Usage, format!("host `{name}`: {cause}")),
        (Error::Version { .. }, HostReach::Ssh(_)) => {
            fleet_error(error).with_line("or", "--push-binary copies this one there for the run")
        }
        (Error::RoleFailed { failure, .. }, _) if run.is_some_and(|run| failure.message.contains(run)) => {
            let what = format!("host `{name}` is the same machine as another host of this run");
            UserError::new(Exit::Preflight, what).with_line("fix", "name each machine once")
        }
        _ => fleet_error(error),
    }
}

/// The most lines of standard error in an error: the last ones say what happened last, and a whole screen of them hides it.
const STDERR_LINES_MAX: usize = 3;

/// Adds what the command of a launcher wrote, and how it ended.
fn explained(user_error: UserError, end: &ProcessEnd) -> UserError {
    // The frame of a warning, and the command that goes into the fix.
    let is_aside = |line: &str| line.starts_with('@') || line.starts_with(KEYGEN) || line == "remove with:";
    let is_told = |line: &&str| !line.is_empty() && !is_aside(line);
    let lines: Vec<&str> = end.stderr.lines().map(str::trim).filter(is_told).collect();
    let last = &lines[lines.len().saturating_sub(STDERR_LINES_MAX)..];
    let mut user_error = last.iter().fold(user_error, |user_error, line| user_error.with_line("why", *line));
    if !end.printed.is_empty() {
        user_error = user_error.with_line("why", format!("it printed: {}", end.printed));
    }
    match &end.exit {
        Some(exit) if lines.is_empty() => user_error.with_line("why", format!("the command ended with {exit}")),
        _ => user_error,
    }
}

/// How the line begins in which `ssh` says how to forget a host key.
const KEYGEN: &str = "ssh-keygen ";

fn ssh_error(name: &str, host: &SshHost, loss: &Disconnected, end: &ProcessEnd) -> UserError {
    let failure = SshFailure::of(&end.stderr);
    let what = failure.map_or_else(|| format!("no agent answers: {loss}"), |failure| failure.text().to_owned());
    let user_error = explained(UserError::new(Exit::Preflight, format!("host `{name}`: {what}")), end);
    let fix = match failure {
        None => format!(
            "{} {} agent --stdio < /dev/null        # shows what is printed there",
            ssh::by_hand(host),
            ssh::program(host)
        ),
        Some(failure) => {
            // Its own command names the file, too.
            let of_ssh = end.stderr.lines().map(str::trim).find(|line| line.starts_with(KEYGEN));
            let of_ssh = of_ssh.filter(|_| failure == SshFailure::HostKeyChanged);
            let only_if = "        # only if the host was installed anew; otherwise someone may be in between";
            of_ssh.map_or_else(|| failure.fix(host), |command| format!("{command}{only_if}"))
        }
    };
    user_error.with_line("fix", fix)
}

/// Returns a command as a shell reads it.
fn shown_command(words: &[String]) -> String {
    let is_plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-=:@%+,".contains(c));
    let shown = words
        .iter()
        .map(|word| if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) });
    shown.collect::<Vec<_>>().join(" ")
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
fn own_address(plan: &Plan, pods: Option<&Pods>) -> anyhow::Result<IpAddr> {
    // Nothing is sent, so any port does.
    let any_port = |address: IpAddr| SocketAddr::new(address, 22).to_string();
    let served = plan.hosts.iter().find_map(|(name, reach)| match reach {
        HostReach::Tls { address, data: None, .. } => Some(address.clone()),
        HostReach::Ssh(SshHost { address, data: None, .. }) => Some(format!("{}:22", bracketed(address))),
        HostReach::Tls { .. } | HostReach::Ssh(_) | HostReach::Exec(_) => reach.data().map(any_port),
        HostReach::Kubernetes(host) => {
            let pod = pods.and_then(|pods| pods.of(name).as_ref().ok());
            host.data.or_else(|| pod.map(|pod| pod.address)).map(any_port)
        }
        _ => None,
    });
    // The test itself reports a target without a route.
    let towards_target = || plan.tests.iter().find_map(|test| source_address_towards(&target::destination(test)?));
    served.map_or_else(
        || Ok(towards_target().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
        |address| address_towards(&address),
    )
}

/// Returns the source address towards the first routable address of a host.
fn source_address_towards(host: &str) -> Option<IpAddr> {
    target::resolve(host).ok()?.into_iter().find_map(|address| fathom_probe::source_address_for(address).ok())
}

/// Returns the source address of packets to `target`. Sends nothing.
fn address_towards(target: &str) -> anyhow::Result<IpAddr> {
    let target = resolve(target)?;
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
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
    let unknown =
        |why: String| UserError::new(Exit::Preflight, format!("there is no host at `{address}`")).with_line("why", why);
    let mut found = address.to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has no address".to_owned()))
}

fn lab_agent(lab: &Lab, host: &str, lab_name: &str) -> anyhow::Result<(AgentStream, PathHost)> {
    let (place, reached) = lab_place(lab, host, lab_name)?;
    let host = lab.host(host).map_err(|error| lab_error(&error))?;
    let link = launcher::namespace(&own_program()?, host.namespaces(), reached).map_err(|error| fleet_error(&error))?;
    Ok((link, place))
}

/// Returns the place of a host of a lab, and how it is reached.
fn lab_place(lab: &Lab, host: &str, lab_name: &str) -> Result<(PathHost, String), UserError> {
    let host = lab.host(host).map_err(|error| lab_error(&error))?;
    let reached = format!("namespace {} of lab {lab_name}", host.name());
    let mut interfaces = host.interfaces().iter().map(|interface| interface.name.clone());
    let device = lab.device().filter(|_| host.name().as_str() == device::HOST).cloned();
    let missing = lab.missing_features().iter().map(|loss| format!("{}: {}", loss.what, loss.why));
    let place = PathHost {
        address: host.address(),
        interface: interfaces.next(),
        further_interfaces: interfaces.collect(),
        is_on_this_machine: true,
        allowed_cores: None,
        unavailable: missing.chain(device.iter().flat_map(|device| device.unavailable.clone())).collect(),
        device,
    };
    Ok((place, reached))
}

/// Returns how a head of the same lab reaches a host of it.
///
/// # Errors
/// In a lab without root, whose namespaces only its own children can enter.
fn lab_reach(lab: &Lab, host: &str, reached: &str) -> Result<MemberReach, UserError> {
    let host = lab.host(host).map_err(|error| lab_error(&error))?;
    if host.namespaces().user.is_some() {
        let what = "heads in a lab need root: only a child of this program can enter the hosts of a lab without it";
        return Err(
            UserError::new(Exit::Preflight, what).with_line("fix", "start fathom as root, or leave out --heads")
        );
    }
    // This program keeps the namespace open until the run is over.
    let net = format!("/proc/{}/fd/{}", process::id(), host.namespaces().net.as_fd().as_raw_fd());
    Ok(MemberReach::Namespace { net: net.into(), reached: reached.to_owned() })
}

fn served_agent(address: &str, key: Option<&str>, data: Option<IpAddr>) -> StartedAgent {
    let key = key.ok_or_else(|| no_key_error(address))?;
    let key: Key = key.parse().map_err(|error| fleet_error(&error))?;
    let at = resolve(address)?;
    let link = launcher::tls(&at.to_string(), &key).map_err(|error| fleet_error(&error))?;
    Ok((link, elsewhere(data.unwrap_or_else(|| at.ip()))))
}
