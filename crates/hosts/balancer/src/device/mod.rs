//! The balancer as a device: packets by `nfnetlink_queue`, decisions by [`Balancer`], targets by mark.
//!
//! A thread reads each queue. Packets come from a rule of the packet filter, before connection tracking could put fragments together; a verdict
//! gives a packet the mark of its target, and the kernel routes it there. Fragments that wait for their first one come back by a tun device.
//! Everything belongs to the network namespace of the thread that starts it.

mod control;
mod error;
mod fast_path;
mod path_counters;
mod queue_loop;
mod settings;
mod steering;
mod verdict_order;

use std::{
    collections::BTreeMap,
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fathom_model::{
    names::host::QUEUE_THREAD,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    clock,
    netlink::{
        nftables::QueueWay,
        packet_queue::{PacketInbox, PacketQueue, QueueSettings, SegmentHandling, WhenFull},
    },
    socket::SockRef,
};
use serde::Serialize;

pub use control::{ControlAnswer, ControlRequest, ask, kill};
pub use error::{DeviceError, TARGET_FORM};
pub use fast_path::FastPathCounters;
pub use path_counters::QueueCounters;
pub use settings::{DataPath, DeviceSettings, DeviceTarget, ForwardMode, VerdictGrouping};

use crate::{
    Balancer, BalancerCounters, BalancerError, DEFAULT_GROUP, Target,
    flows::{FlowRule, RuleError},
    fragments::FragmentSettingsError,
    targets::WEIGHT_MAX,
};
use fast_path::FastPath;
use path_counters::PathCounters;
use queue_loop::QueueLoop;
use settings::is_plain_name;
use steering::Steering;

/// The most memory that waiting packets of a queue may take: a window of 4096 packets of 4 KiB with their headers in the kernel.
const BUFFER_MAX: u64 = 64 << 20;
/// Ethernet addresses change when a host is replaced, and a new one is found by the first packets that pass up to the queues.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(50);
/// What the kernel adds to a copied packet: a socket buffer and its attributes.
const PACKET_OVERHEAD: u64 = 1024;

/// Reads a flow rule of a request.
fn flow_rule(text: &str) -> Result<FlowRule, DeviceError> {
    text.parse().map_err(|error: RuleError| DeviceError::Refused { what: error.to_string(), fix: None })
}

/// All counters of a device. In JSON as they are named here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceCounters {
    /// The name of the balancer.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ns: u64,
    /// How packets reach their target.
    pub mode: ForwardMode,
    /// What decides about packets.
    pub data_path: DataPath,
    /// The decisions.
    pub decisions: BalancerCounters,
    /// The program before the queues; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_path: Option<FastPathCounters>,
    /// The data path, queue by queue.
    pub queues: Vec<QueueCounters>,
}

/// A target as a running balancer tells it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TargetRow {
    /// The group.
    pub group: String,
    /// The target.
    pub target: DeviceTarget,
    /// The mark of its packets.
    pub mark: u32,
}

/// What the threads of a device share.
struct SharedState {
    settings: DeviceSettings,
    balancer: Arc<Balancer>,
    steering: Mutex<Steering>,
    fast_path: Option<FastPath>,
    counters: BTreeMap<u16, Arc<PathCounters>>,
    started_at: Nanos,
    /// The connection that is served, so that the end need not wait for it.
    asking: Mutex<Option<UnixStream>>,
}

/// A balancer that runs; dropping it ends it and undoes all changes.
pub struct RunningBalancer {
    shared: Arc<SharedState>,
    is_over: Arc<AtomicBool>,
    queues: Vec<JoinHandle<fathom_sys::Result<()>>>,
    listener: UnixListener,
    control: Option<JoinHandle<()>>,
    /// Looks where the targets are, for the fast path.
    looking: Option<JoinHandle<()>>,
}

impl RunningBalancer {
    /// Starts a balancer in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If a setting is wrong, a balancer of this name runs, or the kernel lacks what it needs; then nothing was changed.
    pub fn start(settings: DeviceSettings) -> Result<Self, DeviceError> {
        settings.check()?;
        // First, since it belongs to whoever runs here.
        let listener = control::listen(&settings.name)?;
        let (shared, queues, copy_range) = SharedState::prepare(settings)?;
        let (shared, is_over) = (Arc::new(shared), Arc::new(AtomicBool::new(false)));
        let mut running = Self { shared, is_over, queues: Vec::new(), listener, control: None, looking: None };
        for queue in queues {
            running.begin_queue(queue, copy_range)?;
        }
        running.begin_control()?;
        // Last: from here on packets wait for verdicts.
        running.shared.steering().begin()?;
        running.begin_fast_path()?;
        Ok(running)
    }

    /// Starts the thread that decides the packets of a queue.
    fn begin_queue(&mut self, queue: PacketQueue, copy_range: Bytes) -> Result<(), DeviceError> {
        let work = self.queue_loop(queue, copy_range);
        let is_over = Arc::clone(&self.is_over);
        let thread = thread::Builder::new().name(format!("{QUEUE_THREAD}{}", work.queue.number()));
        self.queues.push(thread.spawn(move || work.run(&is_over)).map_err(not_started)?);
        Ok(())
    }

    /// Starts the thread that answers the commands of others.
    fn begin_control(&mut self) -> Result<(), DeviceError> {
        let server = self.listener.try_clone().map_err(not_started)?;
        let (answering, is_over) = (Arc::clone(&self.shared), Arc::clone(&self.is_over));
        let thread = thread::Builder::new().name("balance-control".to_owned());
        self.control = Some(thread.spawn(move || answering.serve(&server, &is_over)).map_err(not_started)?);
        Ok(())
    }

    /// Lets the program of the fast path decide, and looks from now on where the targets are.
    fn begin_fast_path(&mut self) -> Result<(), DeviceError> {
        let Some(fast_path) = &self.shared.fast_path else { return Ok(()) };
        self.shared.publish()?;
        fast_path.attach()?;
        let (shared, is_over) = (Arc::clone(&self.shared), Arc::clone(&self.is_over));
        let thread = thread::Builder::new().name("balance-ways".to_owned());
        self.looking = Some(thread.spawn(move || shared.look(&is_over)).map_err(not_started)?);
        Ok(())
    }

    fn queue_loop(&self, queue: PacketQueue, copy_range: Bytes) -> QueueLoop {
        let shared = &self.shared;
        let (tun, tun_index) = shared.steering().tun();
        QueueLoop {
            inbox: PacketInbox::of(copy_range),
            worker: shared.balancer.worker(),
            tun,
            tun_index,
            defects: shared.settings.balancer.defects.clone(),
            grouping: shared.settings.verdicts,
            counters: Arc::clone(&shared.counters[&queue.number()]),
            queue,
        }
    }

    /// How packets get into its queues.
    #[must_use]
    pub fn way(&self) -> QueueWay {
        self.shared.steering().way()
    }

    /// All counters.
    #[must_use]
    pub fn counters(&self) -> DeviceCounters {
        self.shared.counters()
    }

    /// Returns true as soon as a thread has ended: its queue is no longer read, and [`Self::end`] tells why.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.queues.iter().any(JoinHandle::is_finished)
    }

    /// Ends it: no more packets are queued, those that wait are decided, and all changes are undone.
    ///
    /// # Errors
    /// The error with which the thread of a queue ended.
    pub fn end(mut self) -> Result<DeviceCounters, DeviceError> {
        let outcome = self.finish();
        outcome.map(|()| self.counters()).map_err(|error| DeviceError::kernel("read a queue", error))
    }

    fn finish(&mut self) -> fathom_sys::Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(fast_path) = &self.shared.fast_path {
            fast_path.detach();
        }
        self.shared.steering().end();
        if let Some(looking) = self.looking.take() {
            looking.thread().unpark();
            let _ = looking.join();
        }
        let ended =
            self.queues.drain(..).map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let outcome = ended.fold(Ok(()), fathom_sys::Result::and);
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(stream) = &*self.shared.asking() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
        outcome
    }
}

impl Drop for RunningBalancer {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Makes the ways to the other balancers of the tier. No packet gets the mark of this one.
fn lay_tier(settings: &DeviceSettings, steering: &mut Steering) -> Result<Vec<Target>, DeviceError> {
    let mut lay = |balancer: &DeviceTarget| {
        let mark = if settings.is_own(balancer) {
            settings.first_mark
        } else {
            steering.check(balancer)?;
            steering.add(balancer.clone(), clock::now())?
        };
        Ok(Target { name: balancer.name.clone(), mark, weight: balancer.weight })
    };
    settings.tier.iter().map(|balancer| lay(balancer).map_err(DeviceError::of_tier)).collect()
}

fn open_queue(number: u16, copy_range: Bytes, settings: &DeviceSettings) -> Result<PacketQueue, DeviceError> {
    let of_packets = u64::from(settings.queue_length) * (copy_range.0 + PACKET_OVERHEAD);
    let queue = QueueSettings {
        copy_range,
        length: settings.queue_length,
        segments: if settings.balancer.defects.no_gso { SegmentHandling::Cut } else { SegmentHandling::Whole },
        when_full: WhenFull::Drop,
        buffer: Bytes(of_packets.min(BUFFER_MAX)),
    };
    PacketQueue::open(number, &queue).map_err(|error| match error.errno() {
        // The tables of routes were changed before, so the privilege is there, and the queue is somebody else's.
        Some(EPERM | EBUSY) => DeviceError::QueueTaken(number),
        Some(EINVAL | EPROTONOSUPPORT) => DeviceError::NoQueues,
        _ => DeviceError::kernel("take a queue", error),
    })
}

const EPERM: i32 = 1;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EPROTONOSUPPORT: i32 = 93;

fn not_started(source: io::Error) -> DeviceError {
    DeviceError::Control { attempt: "start the threads of the balancer", source }
}

impl SharedState {
    /// Makes the tables, rules and queues of a balancer. Returns them with the queues and the bytes that are copied of a packet.
    fn prepare(settings: DeviceSettings) -> Result<(Self, Vec<PacketQueue>, Bytes), DeviceError> {
        let wrong =
            |error: FragmentSettingsError| DeviceError::BadSetting { option: "fragments", why: error.to_string() };
        let balancer = Arc::new(Balancer::new(settings.balancer.clone()).map_err(wrong)?);
        let fast_path = FastPath::prepare(&settings, balancer.table_size().get())?;
        let mut steering = Steering::prepare(settings.clone())?;
        for target in &settings.targets {
            steering.check(target)?;
            fast_path.as_ref().map_or(Ok(()), |fast_path| fast_path.check(target))?;
            let mark = steering.add(target.clone(), clock::now())?;
            let target = Target { name: target.name.clone(), mark, weight: target.weight };
            balancer.set_target(DEFAULT_GROUP, target)?;
        }
        balancer.set_tier(&lay_tier(&settings, &mut steering)?)?;
        let copy_range = settings.copy_range(steering.largest_mtu()?);
        let queues = settings.queues.clone().map(|number| open_queue(number, copy_range, &settings));
        let queues = queues.collect::<Result<Vec<PacketQueue>, DeviceError>>()?;
        let counters = settings.queues.clone().map(|number| (number, Arc::default())).collect();
        let (steering, started_at, asking) = (Mutex::new(steering), clock::now(), Mutex::default());
        Ok((Self { settings, balancer, steering, fast_path, counters, started_at, asking }, queues, copy_range))
    }

    fn steering(&self) -> std::sync::MutexGuard<'_, Steering> {
        self.steering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> DeviceCounters {
        let mut decisions = self.balancer.counters();
        let fast_path = self.fast_path.as_ref().map(|fast_path| self.count_redirected(fast_path, &mut decisions));
        DeviceCounters {
            name: self.settings.name.clone(),
            pid: std::process::id(),
            uptime_ns: (clock::now() - self.started_at).0,
            mode: self.settings.mode,
            data_path: self.settings.data_path,
            decisions,
            fast_path,
            queues: self.counters.iter().map(|(queue, counters)| counters.read(*queue)).collect(),
        }
    }

    /// Adds what the program decided to the decisions of the queues.
    fn count_redirected(&self, fast_path: &FastPath, decisions: &mut BalancerCounters) -> FastPathCounters {
        let mut counters = fast_path.counters();
        counters.left_to_queue_because = self.balancer.beside_table();
        for (number, name) in self.balancer.target_names().into_iter().enumerate() {
            let n = fast_path.n_redirected(number);
            *decisions.targets.entry(name).or_default() += n;
            counters.n_redirected += n;
        }
        decisions.n_packets += counters.n_redirected;
        decisions.n_forwarded += counters.n_redirected;
        counters
    }

    /// Tells the fast path the tables as they are now.
    fn publish(&self) -> Result<(), DeviceError> {
        self.publish_by(&self.steering())
    }

    /// The same after a change, if it was made.
    fn followed(&self, change: Result<(), BalancerError>) -> Result<(), DeviceError> {
        change?;
        self.publish()
    }

    fn publish_by(&self, steering: &Steering) -> Result<(), DeviceError> {
        let Some(fast_path) = &self.fast_path else { return Ok(()) };
        let known = steering.targets().map(|(mark, target)| (mark, target.clone())).collect();
        fast_path.publish(self.balancer.sole_table().as_deref(), &known)
    }

    /// Looks where the targets are until the device ends.
    fn look(&self, is_over: &AtomicBool) {
        while let Some(fast_path) = self.fast_path.as_ref().filter(|_| !is_over.load(Ordering::Relaxed)) {
            // What fails once is tried again; meanwhile the ways stay as they are.
            let is_complete = fast_path.refresh().unwrap_or(false);
            thread::park_timeout(if is_complete { LOOK_AGAIN } else { LOOK_SOON });
        }
    }

    fn asking(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, listener: &UnixListener, is_over: &AtomicBool) {
        // Once the socket is shut down, accepting fails behind the last one who waits.
        for stream in listener.incoming().map_while(Result::ok) {
            *self.asking() = stream.try_clone().ok();
            // Looked at behind the lock: from here on the end finds the stream.
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            control::serve(&stream, |request| self.answer(request));
            *self.asking() = None;
        }
    }

    fn answer(&self, request: ControlRequest) -> Result<serde_json::Value, DeviceError> {
        fn json(value: impl Serialize) -> serde_json::Value {
            serde_json::to_value(value).expect("an answer is plain data")
        }
        if self.settings.is_first_tier() && request.is_of_targets() {
            let what = "this balancer has no targets: those of its tier decide about everything".to_owned();
            return Err(DeviceError::Refused { what, fix: Some("change it in each balancer of the tier".to_owned()) });
        }
        match request {
            ControlRequest::Counters => Ok(json(self.counters())),
            ControlRequest::Targets => Ok(json(self.targets(&self.steering()))),
            ControlRequest::Flows => Ok(json(self.balancer.flows())),
            ControlRequest::UseQueues(n_queues) => self.steering().use_queues(n_queues).map(json),
            ControlRequest::AddTarget { group, target } => self.add_target(&group, target).map(json),
            ControlRequest::RemoveTarget { group, name } => self.remove_target(&group, &name).map(json),
            ControlRequest::SetWeight { group, name, weight } => self.set_weight(&group, &name, weight).map(json),
            ControlRequest::SetFlow(text) => self.followed(self.balancer.set_flow(flow_rule(&text)?)).map(json),
            ControlRequest::SetFlows(texts) => {
                let rules = texts.iter().map(|text| flow_rule(text)).collect::<Result<_, _>>()?;
                self.followed(self.balancer.set_flows(rules)).map(json)
            }
            ControlRequest::RemoveFlow(name) => self.followed(self.balancer.remove_flow(&name)).map(json),
        }
    }

    fn targets(&self, steering: &Steering) -> Vec<TargetRow> {
        let known: BTreeMap<u32, &DeviceTarget> = steering.targets().collect();
        let rows = self.balancer.groups().into_iter().flat_map(|(group, targets)| {
            let row = |target: Target| {
                let known = DeviceTarget { weight: target.weight, ..(*known.get(&target.mark)?).clone() };
                Some(TargetRow { group: group.clone(), target: known, mark: target.mark })
            };
            targets.into_iter().filter_map(row).collect::<Vec<_>>()
        });
        rows.collect()
    }

    /// Makes the way to a target before packets are sent there.
    fn add_target(&self, group: &str, target: DeviceTarget) -> Result<(), DeviceError> {
        if !is_plain_name(group) {
            let what = format!("group `{group}`: its name has letters, digits, '-', '_' and '.' only");
            return Err(DeviceError::Refused { what, fix: None });
        }
        let mut steering = self.steering();
        let all = self.targets(&steering);
        // The same host may be in several groups.
        let others = all.iter().filter(|row| row.group == group).map(|row| &row.target);
        self.settings.check_target(&target, others)?;
        steering.check(&target)?;
        self.fast_path.as_ref().map_or(Ok(()), |fast_path| fast_path.check(&target))?;
        let (name, weight) = (target.name.clone(), target.weight);
        let mark = steering.add(target, clock::now())?;
        let added = self.balancer.set_target(group, Target { name, mark, weight });
        if added.is_err() {
            steering.remove(mark, clock::now());
        }
        added?;
        self.publish_by(&steering)
    }

    /// Builds the table anew with another weight; the way to the target stays.
    fn set_weight(&self, group: &str, name: &str, weight: u32) -> Result<(), DeviceError> {
        if !(1..=WEIGHT_MAX).contains(&weight) {
            let why = format!("its weight is a number from 1 to {WEIGHT_MAX}");
            return Err(DeviceError::TargetRefused { given: name.to_owned(), why });
        }
        // Nobody else adds or removes targets meanwhile.
        let steering = self.steering();
        let all = self.targets(&steering);
        let row = all.iter().find(|row| row.group == group && row.target.name == name);
        let unknown = || BalancerError::NoSuchTarget { group: group.to_owned(), name: name.to_owned() };
        let mark = row.ok_or_else(unknown)?.mark;
        self.balancer.set_target(group, Target { name: name.to_owned(), mark, weight })?;
        self.publish_by(&steering)
    }

    /// Sends no more packets to a target, then removes the way.
    fn remove_target(&self, group: &str, name: &str) -> Result<(), DeviceError> {
        let mut steering = self.steering();
        let groups = self.balancer.groups();
        let mark = groups.get(group).and_then(|all| Some(all.iter().find(|target| target.name == name)?.mark));
        self.balancer.remove_target(group, name)?;
        self.publish_by(&steering)?;
        if let Some(mark) = mark {
            steering.remove(mark, clock::now());
        }
        Ok(())
    }
}
