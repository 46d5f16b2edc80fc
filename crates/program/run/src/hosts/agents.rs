//! Starts the agents of a plan's hosts: each one in its own way, those elsewhere at the same time.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    process,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use fathom_engine::{Stop, StopFlag};
use fathom_fleet::{
    AgentStream, Disconnected, Error, ErrorClass, ProcessEnd, TASK_LIMIT_HINT,
    launcher::{
        self,
        kubernetes::{self, PodFailure, Pods},
        ssh::{self, SshFailure, SshRoute},
    },
    protocol::MemberReach,
    tls::Key,
};
use fathom_lab::{Lab, device};
use fathom_model::{
    Plan,
    kubernetes::KubernetesHost,
    plan::HostReach,
    reach::{ExecHost, SshHost},
    shell::{shell_word, shell_words},
    units::Nanos,
};
use fathom_sys::{
    clock,
    process::{own_program, signal},
};

use super::{PathHost, PlanLabs, fleet_error, no_lab_error};
use crate::{
    exit::{Exit, UserError, lab_error},
    target,
};

/// A started agent with its host, or the reason why there is none.
type StartedAgent = Result<(AgentStream, PathHost), UserError>;

/// What is wrong with a host that this run holds by another name.
pub(super) const SAME_MACHINE: &str = "is the same machine as another host of this run";
/// The most logins at once through one host: sshd(8) drops some of more than 10 that have not logged in (its `MaxStartups`), and other
/// people may be at it.
const LOGINS_MAX: usize = 8;
/// The interval for checking whether the agents are still wanted.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(50);
/// The time to end what was begun, once the agents are not wanted. A look-up of a name may take longer, and leaves nothing behind.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(2);

/// The hosts of a plan whose agents are to be started. Those behind heads are not; pods run already.
#[derive(Clone, Copy)]
pub(super) struct Starting<'a> {
    pub(super) plan: &'a Plan,
    pub(super) labs: &'a PlanLabs,
    pub(super) pods: Option<&'a Pods>,
    /// Whether a host is not behind a head.
    pub(super) is_direct: &'a dyn Fn(&str) -> bool,
}

impl Starting<'_> {
    /// Starts the agents of all hosts of a plan, and passes each one on as soon as it is there: an agent that hears nothing for 3 s ends.
    /// Connections to other machines are made at the same time. Once `is_stopped`, no more hosts are passed on.
    ///
    /// # Errors
    /// Those of `on_start`, and bugs. Errors of hosts are passed on, so that all of them can be told.
    pub(super) fn start_all(
        self,
        is_stopped: &dyn Fn() -> bool,
        mut on_start: impl FnMut(String, StartedAgent) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for (name, reach) in self.direct().filter(|(_, reach)| reach.is_on_this_machine()) {
            let started =
                self.agent_here(name, reach).map_or_else(|error| error.downcast().map(Err), |here| Ok(Ok(here)));
            on_start(name.clone(), started?)?;
        }
        for (name, reach) in self.direct() {
            if let (HostReach::Kubernetes(host), Some(pods)) = (reach, self.pods) {
                on_start(name.clone(), pod_agent(name, host, pods))?;
            }
        }
        let stop = StopFlag::default();
        let outcome = self.start_elsewhere(&stop, is_stopped, &mut on_start);
        // If a host could not be passed on, nobody wants the others.
        stop.abort();
        outcome
    }

    /// Starts the agents of all hosts that are elsewhere, as [`Self::start_all`].
    fn start_elsewhere(
        self,
        stop: &StopFlag,
        is_stopped: &dyn Fn() -> bool,
        on_start: &mut dyn FnMut(String, StartedAgent) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let logins = Arc::new(LoginLimit::default());
        let (tell, outcomes) = mpsc::channel();
        let mut n_open = 0_usize;
        let is_elsewhere =
            |reach: &HostReach| !reach.is_on_this_machine() && !matches!(reach, HostReach::Kubernetes(_));
        for (name, reach) in self.direct().filter(|(_, reach)| is_elsewhere(reach)) {
            let started = {
                let (name, reach, tell) = (name.clone(), reach.clone(), tell.clone());
                let (stop, logins) = (stop.clone(), Arc::clone(&logins));
                thread::Builder::new().spawn(move || {
                    let outcome = agent_elsewhere(&name, &reach, &logins, &stop);
                    // Nobody waits for it any more if the run was stopped.
                    let _ = tell.send((name, outcome));
                })
            };
            match started {
                Ok(_) => n_open += 1,
                Err(cause) => {
                    let what = format!("host `{name}`: cannot connect to all hosts at once");
                    let error = UserError::new(Exit::Preflight, what).with_line("why", cause.to_string());
                    on_start(name.clone(), Err(error.with_line("fix", TASK_LIMIT_HINT)))?;
                }
            }
        }
        drop(tell);
        let mut stopped_at = None;
        while n_open > 0 {
            match outcomes.recv_timeout(STOP_CHECK_EVERY) {
                Ok((name, outcome)) => {
                    n_open -= 1;
                    if stopped_at.is_none() {
                        on_start(name, outcome)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("each thread tells its outcome"),
            }
            if stopped_at.is_none() && is_stopped() {
                stop.abort();
                stopped_at = Some(clock::now());
            }
            if stopped_at.is_some_and(|at| clock::now() >= at + STOP_TIMEOUT) {
                break;
            }
        }
        Ok(())
    }

    /// The hosts that are not behind a head.
    fn direct(&self) -> impl Iterator<Item = (&String, &HostReach)> {
        self.plan.hosts.iter().filter(|(name, _)| (self.is_direct)(name))
    }

    /// Starts the agent of a host that is on this machine.
    fn agent_here(&self, name: &str, reach: &HostReach) -> anyhow::Result<(AgentStream, PathHost)> {
        let (plan, labs) = (self.plan, self.labs);
        match reach {
            HostReach::At(address) => local_agent(*address),
            HostReach::Lab(host) => {
                let lab = labs.own.as_ref().ok_or_else(|| no_lab_error(name))?;
                lab_agent(lab, host, plan.lab.as_ref().map_or("", |lab| &lab.preset))
            }
            HostReach::LabUp(lab, host) => lab_agent(&labs.up[lab], host, lab),
            _ => local_agent(own_address(plan, self.pods)?),
        }
    }
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
            let place = ssh_place(name, host, ssh::route(host).as_ref())?;
            let reached = format!("ssh {}", ssh::destination(host));
            return Ok((MemberReach::Host(reach.clone()), reached, place));
        }
        HostReach::Exec(host) => {
            let address = exec_address(name, host)?;
            return Ok((MemberReach::Host(reach.clone()), host.command.join(" "), elsewhere(address, None)));
        }
        HostReach::Tls { address, key: Some(_), data } => {
            let reached_at = resolve(address).map(|at| at.ip());
            let place = match data {
                Some(data) => elsewhere(*data, reached_at.ok()),
                None => reached_at.map(|at| elsewhere(at, Some(at)))?,
            };
            return Ok((MemberReach::Host(reach.clone()), format!("tls {address}"), place));
        }
        HostReach::Tls { address, .. } => return Err(no_key_error(name, address)),
        HostReach::This | HostReach::At(_) | HostReach::Kubernetes(_) | HostReach::Inventory(_) => {
            let what = format!("host `{name}` is reached from here only, not through a head");
            return Err(UserError::new(Exit::Usage, what).with_line("use", "a group without it, or leave out --heads"));
        }
    };
    let (place, reached) = lab_place(lab, host, lab_name)?;
    Ok((lab_reach(lab, host, &reached)?, reached, place))
}

fn no_key_error(name: &str, address: &str) -> UserError {
    UserError::new(Exit::Preflight, format!("host `{name}`: {address} answers only to its key")).with_line(
        "use",
        "the key that `fathom serve` printed there: key = \"…\" in the inventory, --key, --key-file or FATHOM_KEY",
    )
}

/// Lets only so many logins through one host go on at once.
#[derive(Default)]
struct LoginLimit {
    n_at: Mutex<BTreeMap<String, usize>>,
    changed: Condvar,
}

/// The right to log in through a host, until it is dropped.
struct LoginTurn<'a> {
    limit: &'a LoginLimit,
    hop: String,
}

impl LoginLimit {
    /// Waits for a turn at the host that is connected to first; none once it is stopped.
    fn turn(&self, hop: String, stop: &StopFlag) -> Option<LoginTurn<'_>> {
        let mut n_at = self.n_at.lock().unwrap_or_else(PoisonError::into_inner);
        while stop.state() == Stop::Continue {
            let n = n_at.entry(hop.clone()).or_default();
            if *n < LOGINS_MAX {
                *n += 1;
                return Some(LoginTurn { limit: self, hop });
            }
            let waited = self.changed.wait_timeout(n_at, STOP_CHECK_EVERY);
            n_at = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }
}

impl Drop for LoginTurn<'_> {
    fn drop(&mut self) {
        let mut n_at = self.limit.n_at.lock().unwrap_or_else(PoisonError::into_inner);
        *n_at.entry(self.hop.clone()).or_insert(1) -= 1;
        self.limit.changed.notify_all();
    }
}

/// Starts the agent of a host that is elsewhere.
fn agent_elsewhere(name: &str, reach: &HostReach, logins: &LoginLimit, stop: &StopFlag) -> StartedAgent {
    match reach {
        HostReach::Tls { address, key, data } => served_agent(name, address, key.as_deref(), *data),
        HostReach::Ssh(host) => ssh_agent(name, host, logins, stop),
        HostReach::Exec(host) => exec_agent(name, host, stop),
        _ => {
            let what = format!("host `{name}` is in an inventory, and no inventory is read");
            Err(UserError::new(Exit::Usage, what).with_line("use", "--hosts FILE"))
        }
    }
}

/// Returns the place of a host that is elsewhere, and whose agent answered at an address, if that is known.
fn elsewhere(address: IpAddr, reached_at: Option<IpAddr>) -> PathHost {
    PathHost {
        address,
        reached_at,
        interface: None,
        further_interfaces: Vec::new(),
        device: None,
        is_on_this_machine: false,
        allowed_cores: None,
        unavailable: Vec::new(),
    }
}

fn ssh_agent(name: &str, host: &SshHost, logins: &LoginLimit, stop: &StopFlag) -> StartedAgent {
    let reach = HostReach::Ssh(host.clone());
    let refused = |error: Error| start_error(name, &reach, &error, None);
    let route = ssh::route(host);
    let place = ssh_place(name, host, route.as_ref())?;
    let first_hop = route.map_or_else(|| host.address.clone(), |route| route.first_hop);
    let turn = logins.turn(first_hop, stop).ok_or_else(|| refused(Error::Interrupted))?;
    let link = ssh::ssh(host, &own_program::path(), stop).and_then(|link| link.logged_in(stop)).map_err(refused)?;
    drop(turn);
    Ok((link, place))
}

/// Returns the place of a host behind `ssh`. Its agent answers at the address that `ssh` connects to, unless that is one of several
/// addresses of a name, or a command makes the connection.
fn ssh_place(name: &str, host: &SshHost, route: Option<&SshRoute>) -> Result<PathHost, UserError> {
    let address = host.data.map_or_else(|| ssh_address(name, host, route), Ok)?;
    let hostname = route.filter(|route| !route.is_by_command).map(|route| route.hostname.as_str());
    // A name that only ssh knows is not looked up.
    let found = hostname.filter(|hostname| host.data.is_none() || hostname.parse::<IpAddr>().is_ok());
    let found = found.and_then(|hostname| target::resolve(hostname).ok()).unwrap_or_default();
    Ok(elsewhere(address, <[IpAddr; 1]>::try_from(found).ok().map(|[only]| only)))
}

/// Returns the address that `ssh` connects to, which is the address on the path under test unless the inventory has another one.
fn ssh_address(name: &str, host: &SshHost, route: Option<&SshRoute>) -> Result<IpAddr, UserError> {
    let hostname = route.map_or(host.address.as_str(), |route| route.hostname.as_str());
    target::resolve(hostname).ok().and_then(|found| found.first().copied()).ok_or_else(|| {
        UserError::new(Exit::Preflight, format!("host `{name}`: `{hostname}` has no address here")).with_line(
            "fix",
            "control = \"…\" with a name that is known here, or data = \"10.0.0.2\" if only ssh knows it",
        )
    })
}

fn exec_address(name: &str, host: &ExecHost) -> Result<IpAddr, UserError> {
    host.data.ok_or_else(|| {
        let what = format!("host `{name}`: its address on the path under test is unknown");
        UserError::new(Exit::Usage, what).with_line("fix", "data = \"10.0.0.2\" beside the command")
    })
}

fn exec_agent(name: &str, host: &ExecHost, stop: &StopFlag) -> StartedAgent {
    let address = exec_address(name, host)?;
    let reach = HostReach::Exec(host.clone());
    let link = launcher::exec(&host.command).and_then(|link| link.logged_in(stop));
    Ok((link.map_err(|error| start_error(name, &reach, &error, None))?, elsewhere(address, None)))
}

fn pod_agent(name: &str, host: &KubernetesHost, pods: &Pods) -> StartedAgent {
    let pod = pods.of(name).as_ref().map_err(|failure| pod_error(Some(name), failure))?;
    let reach = HostReach::Kubernetes(Box::new(host.clone()));
    let link = kubernetes::attach(host, pod).map_err(|error| start_error(name, &reach, &error, None))?;
    Ok((link, elsewhere(host.data.unwrap_or(pod.address), Some(pod.address))))
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
            let by_hand = format!("{} < /dev/null        # shows what the command does", shell_words(&host.command));
            explained(UserError::new(Exit::Preflight, what), end).with_line("fix", by_hand)
        }
        (Error::NoAgent { loss, end, .. }, HostReach::Kubernetes(host)) => {
            let what = format!("host `{name}`: no agent answers in its pod: {loss}");
            let fix = format!("an image with this version of fathom in place of {}", host.cluster.image);
            explained(UserError::new(Exit::Preflight, what), end).with_line("fix", fix)
        }
        (Error::Version { .. } | Error::OtherProgram { .. }, HostReach::Kubernetes(host)) => {
            fleet_error(error).with_line("or", format!("an image with this version in place of {}", host.cluster.image))
        }
        (Error::NoLauncher { program, cause }, HostReach::Exec(_) | HostReach::Ssh(_) | HostReach::Kubernetes(_)) => {
            UserError::new(Exit::Preflight, format!("host `{name}`: cannot start `{program}` here"))
                .with_line("why", cause.to_string())
                .with_line("fix", format!("install {program} on this machine, or name another launcher"))
        }
        (Error::System { what, cause }, HostReach::Exec(_) | HostReach::Ssh(_) | HostReach::Kubernetes(_)) => {
            UserError::new(Exit::Preflight, format!("host `{name}`: cannot {what}")).with_line("why", cause.to_string())
        }
        (Error::BehindHead { head, failure, .. }, _) if failure.hint.is_none() => {
            let by_hand = match reach {
                HostReach::Ssh(host) => format!("{} {}", ssh::by_hand(host), shell_word(&ssh::agent_command(host))),
                HostReach::Exec(host) => shell_words(&host.command),
                _ => return fleet_error(error),
            };
            let by_hand = format!("{by_hand} < /dev/null        # on {head}: shows what happens there");
            fleet_error(error).with_line("fix", by_hand)
        }
        (Error::Push { reason, hint, .. }, _) => {
            let what = format!("host `{name}`: fathom cannot be copied there");
            UserError::new(Exit::Preflight, what).with_line("why", reason.clone()).with_line("fix", hint.clone())
        }
        (Error::Word { cause, .. }, _) => UserError::new(Exit::Usage, format!("host `{name}`: {cause}")),
        (Error::Version { .. } | Error::OtherProgram { .. }, HostReach::Ssh(_)) => {
            fleet_error(error).with_line("or", "--push-binary copies this one there for the run")
        }
        (Error::RoleFailed { failure, .. }, _) if run.is_some_and(|run| failure.message.contains(run)) => {
            let what = format!("host `{name}` {SAME_MACHINE}");
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
    let is_aside = |line: &str| line.starts_with('@') || line.starts_with(ssh::KEYGEN) || line == "remove with:";
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

fn ssh_error(name: &str, host: &SshHost, loss: &Disconnected, end: &ProcessEnd) -> UserError {
    let failure = SshFailure::of(&end.stderr, end.exit);
    let what = failure.map_or_else(|| format!("no agent answers: {loss}"), |failure| failure.text().to_owned());
    let Some(failure) = failure else {
        let by_hand = ssh::by_hand(host);
        let command = shell_word(&ssh::agent_command(host));
        let user_error = explained(UserError::new(Exit::Preflight, format!("host `{name}`: {what}")), end);
        return user_error
            .with_line("fix", format!("{by_hand} {command} < /dev/null        # shows what is printed there"));
    };
    let jump = ssh::failed_jump(host, &end.stderr);
    let of_jump = jump.as_ref().map(|jump| format!("its jump host `{}`: ", jump.address)).unwrap_or_default();
    let user_error = explained(UserError::new(Exit::Preflight, format!("host `{name}`: {of_jump}{what}")), end);
    if let (SshFailure::UnknownName, Some(jump)) = (failure, &jump) {
        let fix = format!("[hosts.{}] with its control in the inventory, or its name in ~/.ssh/config", jump.address);
        return user_error.with_line("fix", fix);
    }
    let user_error = user_error.with_line("fix", failure.fix(jump.as_ref().unwrap_or(host), &end.stderr));
    match (failure, jump) {
        (SshFailure::KeyRefused, Some(jump)) => {
            let file = host.ssh_config.as_deref().unwrap_or("~/.ssh/config");
            let what =
                format!("Host {} with its IdentityFile in {file}: identity is not used for jump hosts", jump.address);
            user_error.with_line("or", what)
        }
        _ => user_error,
    }
}

fn local_agent(address: IpAddr) -> anyhow::Result<(AgentStream, PathHost)> {
    let link = launcher::self_exec(&own_program::path()).map_err(|error| fleet_error(&error))?;
    let place = PathHost {
        address,
        reached_at: None,
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
    // A name that is not known here is told by its own host.
    let peer = plan.hosts.iter().find_map(|(name, reach)| match reach {
        HostReach::Tls { address, data: None, .. } => resolve(address).ok().map(|at| at.ip()),
        HostReach::Ssh(host @ SshHost { data: None, .. }) => ssh_address(name, host, ssh::route(host).as_ref()).ok(),
        HostReach::Tls { .. } | HostReach::Ssh(_) | HostReach::Exec(_) => reach.data(),
        HostReach::Kubernetes(host) => {
            let pod = pods.and_then(|pods| pods.of(name).as_ref().ok());
            host.data.or_else(|| pod.map(|pod| pod.address))
        }
        _ => None,
    });
    // The test itself reports a target without a route.
    let towards_target = || plan.tests.iter().find_map(|test| source_address_towards(&target::destination(test)?));
    peer.map_or_else(|| Ok(towards_target().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))), address_towards)
}

/// Returns the source address towards the first routable address of a host.
fn source_address_towards(host: &str) -> Option<IpAddr> {
    target::resolve(host).ok()?.into_iter().find_map(|address| fathom_probe::source_address_for(address).ok())
}

/// Returns the source address of packets to `target`. Sends nothing.
pub(crate) fn address_towards(target: IpAddr) -> anyhow::Result<IpAddr> {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Nothing is sent, so any port does.
        socket.connect((target, 22))?;
        socket.local_addr()
    });
    routed.map(|address| address.ip()).map_err(|error| {
        UserError::new(Exit::Preflight, format!("there is no route to {target}"))
            .with_line("why", error.to_string())
            .with_line("try", format!("ip route get {target}"))
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
    let link =
        launcher::namespace(&own_program::path(), host.namespaces(), reached).map_err(|error| fleet_error(&error))?;
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
        // A test of targets goes through their device.
        address: host.virtual_address().unwrap_or_else(|| host.address()),
        reached_at: None,
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

fn served_agent(name: &str, address: &str, key: Option<&str>, data: Option<IpAddr>) -> StartedAgent {
    let key = key.ok_or_else(|| no_key_error(name, address))?;
    let named = |error: Error| fleet_error(&error).of_host(name);
    let key: Key = key.parse().map_err(named)?;
    let at = resolve(address).map_err(|error| error.of_host(name))?;
    let link = launcher::tls(&at.to_string(), &key).map_err(named)?;
    Ok((link, elsewhere(data.unwrap_or_else(|| at.ip()), Some(at.ip()))))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    fn ended(code: i32, stderr: &str) -> ProcessEnd {
        let exit = Some(ExitStatus::from_raw(code << 8));
        ProcessEnd { exit, stderr: stderr.to_owned(), printed: String::new() }
    }

    #[test]
    fn only_so_many_logins_go_through_one_host_at_once() {
        let (limit, stop) = (LoginLimit::default(), StopFlag::default());
        let turn = |hop: &str| limit.turn(hop.to_owned(), &stop);
        let mut turns: Vec<_> = (0..LOGINS_MAX).map(|_| turn("gate").unwrap()).collect();
        assert!(turn("other").is_some(), "another host has turns of its own");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| turn("gate").is_some());
            turns.pop();
            assert!(waiting.join().unwrap());
        });
        turns.push(turn("gate").unwrap());
        stop.abort();
        assert!(turn("gate").is_none(), "a run that was stopped waits for no turn");
    }

    #[test]
    fn an_error_of_this_machine_is_not_taken_for_a_missing_ssh() {
        let reach = HostReach::Ssh(SshHost { address: "b1".to_owned(), ..SshHost::default() });
        let no_descriptor =
            Error::System { what: "start an agent with ssh".to_owned(), cause: std::io::Error::from_raw_os_error(24) };
        let shown = start_error("b1", &reach, &no_descriptor, None).to_string();
        assert!(
            shown.starts_with("host `b1`: cannot start an agent with ssh\n  why    Too many open files"),
            "{shown}"
        );
        assert!(!shown.contains("install"), "{shown}");
        let absent = launcher::exec(&["/nonexistent/launcher".to_owned()]).unwrap_err();
        let shown = start_error("b1", &reach, &absent, None).to_string();
        assert!(shown.contains("install /nonexistent/launcher"), "{shown}");
    }

    #[test]
    fn an_unknown_failure_is_shown_with_the_command_that_was_run() {
        let host = SshHost { address: "b1".to_owned(), sudo: true, ..SshHost::default() };
        let locale = "bash: warning: setlocale: LC_ALL: cannot change locale (x): No such file or directory";
        let shown = ssh_error("b1", &host, &Disconnected::Closed, &ended(1, locale)).to_string();
        assert!(shown.starts_with("host `b1`: no agent answers"), "{shown}");
        assert!(shown.contains("ssh b1 'sudo -n -- fathom agent --stdio' < /dev/null"), "{shown}");
    }

    #[test]
    fn a_jump_host_that_refuses_is_named_with_its_own_way_out() {
        let host = SshHost { address: "b1".to_owned(), jump: vec!["me@gate".to_owned()], ..SshHost::default() };
        let stderr = "me@gate: Permission denied (publickey).\nConnection closed by UNKNOWN port 65535";
        let shown = ssh_error("b1", &host, &Disconnected::Closed, &ended(255, stderr)).to_string();
        assert!(shown.starts_with("host `b1`: its jump host `gate`: it accepts no key of this user"), "{shown}");
        assert!(shown.contains("ssh-copy-id me@gate ;") && shown.contains("IdentityFile in ~/.ssh/config"), "{shown}");
    }

    #[test]
    fn a_jump_host_that_nobody_knows_is_declared_in_the_inventory() {
        let host = SshHost { address: "b1".to_owned(), jump: vec!["h9".to_owned()], ..SshHost::default() };
        let stderr =
            "ssh: Could not resolve hostname h9: Name or service not known\nConnection closed by UNKNOWN port 65535";
        let shown = ssh_error("b1", &host, &Disconnected::Closed, &ended(255, stderr)).to_string();
        assert!(shown.starts_with("host `b1`: its jump host `h9`: its name does not resolve"), "{shown}");
        assert!(shown.contains("[hosts.h9]") && !shown.contains("10.0.0.2"), "{shown}");
    }

    #[test]
    fn a_served_host_without_its_key_is_named() {
        let error = served_agent("b1", "127.0.0.1:9", None, None).unwrap_err().to_string();
        assert!(error.starts_with("host `b1`: 127.0.0.1:9 answers only to its key"), "{error}");
        let error = served_agent("b1", "127.0.0.1:9", Some("no key"), None).unwrap_err().to_string();
        assert!(error.starts_with("host `b1`: "), "{error}");
    }
}
