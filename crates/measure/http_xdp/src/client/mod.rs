//! The client in user space: what is decided before a load, and what the program cannot do while it runs.
//!
//! [`PreparedLoad::prepare`] finds the server and the way to it, asks it over an ordinary socket what answer to expect, loads and attaches
//! the program and tries it with one connection. [`PreparedLoad::run`] opens the connections, sends again what was lost, starts what is due,
//! and ends all connections. This module knows no option of a test and no metric.

mod answer;
mod claim;
mod error;
mod exchange;
mod load;
mod neighbours;
mod opening;
mod outbox;
mod route;
mod rows;
mod scan;
mod slow;
pub(crate) mod sources;
mod starts;
mod tally;
mod target;
mod trial;
mod window;

use fathom_engine::{
    EndCondition, Error, TrialContext, TrialResults, WorkerPool,
    load::OpenSchedule,
    pace::{ArrivalProcess, Arrivals, Pacing, Profile, WorkShare},
};
use fathom_model::{
    Role,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    netlink::ethtool::CounterGrowth,
    packet::packet_socket::{Queueing, Sender},
    policy::Policy,
    process::limits,
};

pub(crate) use self::load::LoadOutcome;
pub(crate) use self::tally::{BY_SLOW_PATH, FAILURES};
use self::{
    claim::Claim,
    error::{PRIVILEGES, read_failed, refusal},
    exchange::Learned,
    load::Load,
    outbox::Outbox,
    route::Route,
    scan::Scan,
    slow::SlowPath,
    sources::SourceNetwork,
    starts::Starts,
    target::Target,
    trial::Trial,
};
use crate::{
    PassProgram, attachment,
    frame::Ends,
    machine::Rules,
    program::{LoadProgram, LoadSetup},
    slots::Slots,
};

/// The headers of a segment with IPv6, and the longest frame of Ethernet.
const HEADERS_MAX: usize = 74;
const FRAME_MAX: usize = 1514;
/// What kind of load it is.
#[derive(Debug, Clone)]
pub(crate) struct LoadOptions {
    pub(crate) n_connections: u32,
    pub(crate) timeout: Nanos,
    /// The addresses that nobody has; `None` for that of the device.
    pub(crate) sources: Option<SourceNetwork>,
    /// When requests are due; `None` if each answer is followed by the next request.
    pub(crate) schedule: Option<(Profile, ArrivalProcess)>,
    /// Where in the receive path the program runs.
    pub(crate) mode: XdpMode,
    /// The longest answer, head included; `None` if any is right, also one that the program cannot follow itself.
    pub(crate) answer_max: Option<u32>,
}

/// A load that is over.
#[derive(Debug)]
pub(crate) struct LoadRun {
    pub(crate) results: TrialResults<LoadOutcome>,
    pub(crate) setup: LoadSetup,
    /// Whether the answers before the load differed in length.
    pub(crate) varies: bool,
    /// Why the program can follow none of the answers before the load.
    pub(crate) unusual: Option<String>,
    /// Why there was no slow path.
    pub(crate) no_slow_path: Option<String>,
    pub(crate) device: String,
    /// Frames of the program that the driver could not send, if it counts them.
    pub(crate) n_lost_by_driver: Option<u64>,
}

/// A load, ready to start. Its program is attached as long as it lives.
#[derive(Debug)]
pub(crate) struct PreparedLoad {
    setup: LoadSetup,
    varies: bool,
    unusual: Option<String>,
    is_server_stateless: bool,
    options: LoadOptions,
    program: LoadProgram,
    slow: SlowPath,
    outbox: Outbox,
    claim: Option<Claim>,
    /// The device that the program is attached to.
    device: String,
    _attached: XdpLink,
    cores: Vec<usize>,
}

/// Refuses answers that take more work without sockets than with them.
fn check_answer(length: Option<u32>, unusual: Option<&str>, max: u32) -> Result<(), Error> {
    match length {
        None => {
            let why = unusual.unwrap_or("the program cannot follow the answers");
            Err(refusal(format!("{why}; without sockets, one thread would follow all answers")))
        }
        Some(length) if length > max => {
            let [length, max] = [length, max].map(|bytes| Bytes(bytes.into()));
            Err(refusal(format!("the answers have {length}, and above {max} they need less time for each")))
        }
        Some(_) => Ok(()),
    }
}

impl PreparedLoad {
    /// Makes everything ready, and lets one connection go through the program.
    ///
    /// # Errors
    /// Says what keeps the load from running, and what to do about it.
    pub(crate) fn prepare(
        kind: &'static str,
        role: &Role,
        policy: &Policy,
        options: LoadOptions,
    ) -> Result<Self, Error> {
        let target = Target::prepare(kind, role, policy)?;
        let mut route = Route::find(&target)?;
        let device = route.link.name.clone();
        let slots = slots(&options, &route, policy)?;
        let permit = policy.permit_frames([target.server.ip()])?;
        let system = |what: &str| {
            let what = format!("{what} {device}");
            move |cause| Error::system(what.clone(), PRIVILEGES, cause)
        };
        let sender = Sender::open(route.link.index, Queueing::Bypass, &permit).map_err(system("send frames out of"))?;
        let mut outbox = Outbox::new(sender);
        let pass = pass_program(&route)?;
        let Learned { answer, varies, unusual } = exchange::learn(&target, options.timeout)?;
        drop(pass);
        if let Some(max) = options.answer_max {
            // Before any connection is opened, since another engine is to find the server as it was.
            check_answer(answer.as_ref().map(|answer| answer.length), unusual.as_deref(), max)?;
        }
        let rules = rules(&target, &options, &slots);
        let ends = Ends { server: target.server, next_hop: route.next_hop()?, own: route.mac, request: target.request };
        let is_server_stateless = target.own_answer.is_some();
        if let Some(answer) = answer.as_ref().filter(|_| is_server_stateless) {
            outbox.pad_frames((HEADERS_MAX + answer.length as usize).min(FRAME_MAX));
        }
        let setup = LoadSetup { ends, slots, answer, rules };
        let program = LoadProgram::load(&setup).map_err(system("load the XDP program for"))?;
        let attached = XdpLink::attach(program.program(), route.link.index, options.mode);
        let attached = attached.map_err(|cause| not_attached(&route, options.mode, cause))?;
        route.wait_for_carrier()?;
        let mut claim = options.sources.is_some().then(|| Claim::make(slots, &mut route, &mut outbox)).transpose()?;
        program.stop().map_err(read_failed)?;
        let mut slow = SlowPath::open(&program, &route.link, target.method);
        if let (Some(why), Some(unusual)) = (&slow.unavailable, &unusual) {
            return Err(refusal(format!("{unusual}, and user space cannot follow it: {why}")));
        }
        let trial = Trial {
            program: &program,
            setup: &setup,
            device: &device,
            slow: &mut slow,
            claim: &mut claim,
            outbox: &mut outbox,
        };
        trial.run()?;
        if !setup.rules.closes {
            opening::run(Scan::new(&program, &setup, options.timeout), &mut slow, &mut claim, &mut outbox)?;
        }
        Ok(Self {
            setup,
            varies,
            unusual,
            is_server_stateless,
            options,
            program,
            slow,
            outbox,
            claim,
            device,
            _attached: attached,
            cores: role.cores.clone(),
        })
    }

    /// Runs the load through the phases of a trial.
    ///
    /// # Errors
    /// The kernel did not take a frame, or the books could not be read.
    pub(crate) fn run(self, context: &TrialContext) -> Result<LoadRun, Error> {
        let Self { setup, varies, unusual, is_server_stateless, options, program, .. } = self;
        let Self { slow, outbox, claim, device, _attached, cores, .. } = self;
        let no_slow_path = slow.unavailable.clone();
        let losses = attachment::losses(&device);
        let starts = options.schedule.map(|(profile, process)| {
            let arrivals = Arrivals::new(profile, process, WorkShare { idx: 0, of: 1 });
            Starts::new(OpenSchedule::new(context.start, [arrivals], Pacing::Precise))
        });
        let scan = Scan::new(&program, &setup, options.timeout);
        let counters = tally::counters(starts.is_some());
        let states = vec![Load::new((scan, slow), outbox, claim, starts, is_server_stateless)?];
        let pool = WorkerPool { states, counters, cores: &cores, until: EndCondition::PhasesOver };
        let results = pool.run(context, &mut (), |worker, load| load.run(&worker, &context.stop))?;
        let n_lost_by_driver = losses.as_ref().map(CounterGrowth::count);
        Ok(LoadRun { results, setup, varies, unusual, no_slow_path, device, n_lost_by_driver })
    }
}

/// The rules by which the program answers.
fn rules(target: &Target, options: &LoadOptions, slots: &Slots) -> Rules {
    Rules {
        request_length: u32::try_from(target.request.len()).expect("a request is short"),
        closes: target.closes,
        is_open_load: options.schedule.is_some(),
        port_mask: slots.port_mask(),
    }
}

/// Divides addresses and ports among the connections.
fn slots(options: &LoadOptions, route: &Route, policy: &Policy) -> Result<Slots, Error> {
    let n = options.n_connections;
    let too_few = |of: String, hint: &str| Error::Unsupported {
        what: format!("{n} connections need more ports than {of} has"),
        hint: Some(hint.to_owned()),
    };
    let Some(sources) = &options.sources else {
        let kernels =
            limits::local_ports().map_err(|cause| Error::System { what: "find free ports".to_owned(), cause })?;
        let block = sources::block_beside(&kernels).ok_or_else(|| Error::Unsupported {
            what: format!(
                "the kernel takes its own ports from {} to {}, which leaves none for us",
                kernels.start(),
                kernels.end()
            ),
            hint: Some(
                "--source with addresses that nobody has, or a narrower net.ipv4.ip_local_port_range".to_owned(),
            ),
        })?;
        let slots = Slots::divide(route.own_address, 1, block, n);
        return slots.ok_or_else(|| {
            too_few(
                format!("{} besides those of the kernel", route.own_address),
                "--source with addresses that nobody has, such as 198.18.1.0/24",
            )
        });
    };
    if sources.first.is_ipv4() != route.own_address.is_ipv4() {
        let what = format!("option `source`: {} and the server are of different IP versions", sources.net);
        return Err(Error::Unsupported { what, hint: None });
    }
    if policy.is_for_others() {
        // Whoever answers for addresses could take the packets of others.
        policy.judge(sources.net.to_string().parse().expect("a network is one for the policy too"))?;
    }
    sources.slots(n).ok_or_else(|| too_few(sources.net.to_string(), "--source with a larger network"))
}

/// A program for the time before that of the load: a server that answers by XDP reaches a veth only if it has one.
fn pass_program(route: &Route) -> Result<Option<PassProgram>, Error> {
    let is_veth = route.link.kind.as_deref() == Some("veth");
    let pass = is_veth.then(|| PassProgram::attach(route.link.index)).transpose();
    pass.map_err(|cause| not_attached(route, XdpMode::Native, cause))
}

fn not_attached(route: &Route, mode: XdpMode, cause: fathom_sys::Error) -> Error {
    attachment::refused(&route.link, mode, "--xdp generic, which is slower, or --engine sockets", cause)
}
