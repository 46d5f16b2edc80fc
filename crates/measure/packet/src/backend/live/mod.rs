//! Live frames: an eBPF program in the kernel builds frames, paces them and hands them to the device, in one long system call.
//!
//! `BPF_PROG_TEST_RUN` with live frames (Linux 5.18) runs the program once per potential frame. If no frame is due, the program
//! drops the page and runs again. There is no system call per frame or batch, and the clock is read where the frame is built.

mod monitor;
mod program;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{
    bpf::{self, LiveRunEnd, Program, ProgramType, XdpAction},
    clock,
    netlink::{Netlink, xdp_features::xdp_features},
    process::{affinity, interrupt::Interruptible, threads},
};

use super::{Backend, Generator, OutputDevice, WorkerLoad, require_bypass, unsupported};
use monitor::{PollGaps, WorkerMonitor, count_progress};
use program::ProgramMaps;

/// Frames built by an XDP program.
#[derive(Debug)]
pub(super) struct LiveFrames;

#[derive(Debug)]
struct LiveGenerator {
    program: Program,
    maps: ProgramMaps,
    /// The content of each page before the program writes to it.
    frame: Vec<u8>,
    batch: u32,
    /// The program runs of the first system call.
    n_runs: u32,
    /// A netlink socket in the device's namespace.
    netlink: Netlink,
    name: String,
    /// Cores for the monitor thread, which is not bound to the worker's core.
    cores: Vec<usize>,
    /// From the first frame to the last, known once they have left.
    span: Option<(Nanos, Nanos)>,
}

/// Program runs between two hand-overs to the device: the kernel's own default, and a quarter of a veth's ring.
const BATCH: u32 = 64;
/// The batch at low rates, so that a frame waits at most a few microseconds for the rest of its batch.
const BATCH_SPARSE: u32 = 16;
/// The program runs of one system call under a CPU quota that stops the process: about 50 ms. Since Linux 6.18 a thread is not throttled before it
/// leaves the kernel, but all others of its control group are, so that none could end a longer call.
const RUNS_UNDER_QUOTA: u32 = 1 << 18;
/// Each call costs 20 ms, so that calls grow by this factor while the quota stops nobody.
const GROWTH: u32 = 4;
/// A monitor that did not run for so long, ten times its own interval, was stopped by the quota.
const STOPPED: Nanos = Nanos::from_millis(20);
/// The gap from which the small batch is used. At higher rates a small batch costs more than it gains: 64 runs take about 10 µs,
/// and as many frames become due in that time.
const SPARSE: Nanos = Nanos(1_000);
/// The part of a page that is free for a frame: the kernel needs headroom, and tailroom for the end of a socket buffer.
const LONGEST: usize = 3_300;

impl Backend for LiveFrames {
    fn option_value(&self) -> &'static str {
        "live"
    }

    fn description(&self) -> &'static str {
        "XDP (BPF_PROG_TEST_RUN)"
    }

    fn open(&self, port: &OutputDevice, load: WorkerLoad) -> Result<Box<dyn Generator>, Error> {
        require_bypass(port)?;
        require_redirects(port)?;
        let longest = load.frames.longest();
        if longest > LONGEST {
            return Err(unsupported(format!(
                "frames of {longest} bytes do not fit into a page, which takes {LONGEST}"
            )));
        }
        let what = || format!("make live frames for {}", port.name);
        let system = |cause| Error::system(what(), "CAP_BPF and CAP_NET_ADMIN", cause);
        let maps = ProgramMaps::create(port, &load).map_err(system)?;
        let code = program::code(&load, &maps).map_err(unsupported)?;
        let program = Program::load(ProgramType::Xdp, "fathom_generate", &code).map_err(system)?;
        require_live_frames().map_err(system)?;
        let frame = program::page(&load.frames);
        let is_sparse = load.departures.as_ref().is_some_and(|departures| departures.mean_gap() >= SPARSE);
        let batch = if is_sparse { BATCH_SPARSE } else { BATCH };
        let netlink = Netlink::open().map_err(system)?;
        let cores = affinity::allowed_cores().map_err(system)?;
        let n_runs = if affinity::has_quota() { RUNS_UNDER_QUOTA } else { u32::MAX };
        let name = port.name.clone();
        Ok(Box::new(LiveGenerator { program, maps, frame, batch, n_runs, netlink, name, cores, span: None }))
    }
}

/// Frames redirected to a device that does not accept them vanish without an error, so this asks the kernel first.
fn require_redirects(port: &OutputDevice) -> Result<(), Error> {
    let what = || format!("check the XDP support of {}", port.name);
    let features = xdp_features(port.ifindex).map_err(|cause| Error::System { what: what(), cause })?;
    // Before Linux 6.3 the kernel does not report this. Vanished frames are then noticed at the end.
    if features.is_some_and(|features| !features.takes_redirected()) {
        let name = &port.name;
        return Err(Error::Unsupported {
            what: format!(
                "{name} takes no redirected frames: its driver cannot, or it is a veth whose other end has neither a native \
                 XDP program nor GRO"
            ),
            hint: Some(format!("ethtool -K PEER gro on, on the other end of {name}")),
        });
    }
    Ok(())
}

/// Has the kernel run one live frame, which the program drops.
fn require_live_frames() -> fathom_sys::Result<()> {
    let mut a = bpf::Assembler::new();
    a.give(XdpAction::Drop);
    let program = Program::load(ProgramType::Xdp, "fathom_probe", &a.assemble())?;
    program.run_live(&[0; 60], &bpf::LiveRun { n_runs: 1, batch: 1, from: None }).map(drop)
}

impl Generator for LiveGenerator {
    fn span(&self) -> Option<(Nanos, Nanos)> {
        self.span
    }

    fn send(&mut self, worker: &WorkerHandle<'_>) -> fathom_sys::Result<()> {
        let thread = Interruptible::current()?;
        let (is_done, has_returned) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut live = bpf::LiveRun { n_runs: self.n_runs, batch: self.batch, from: None };
        let gaps = PollGaps::new(clock::now());
        let mut warden = WorkerMonitor {
            maps: &self.maps,
            netlink: &mut self.netlink,
            name: &self.name,
            cores: &self.cores,
            gaps: &gaps,
        };
        thread::scope(|scope| {
            let watch = threads::start_within(scope, "frame-counters", || {
                let watched = warden.watch(worker);
                is_done.store(true, Ordering::Release);
                // A signal between two system calls interrupts neither, so this repeats it until the worker has noticed.
                while !has_returned.load(Ordering::Acquire) {
                    thread.interrupt();
                    clock::sleep_until(clock::now() + INTERRUPT_INTERVAL);
                }
                watched
            })?;
            let mut outcome = Ok(LiveRunEnd::Complete);
            while outcome.is_ok() && !is_done.load(Ordering::Acquire) {
                outcome = self.program.run_live(&self.frame, &live);
                let was_stopped = gaps.take_longest(clock::now()) > STOPPED;
                let is_short = was_stopped && self.n_runs == RUNS_UNDER_QUOTA;
                live.n_runs = if is_short { RUNS_UNDER_QUOTA } else { live.n_runs.saturating_mul(GROWTH) };
            }
            has_returned.store(true, Ordering::Release);
            let watched = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let state = self.maps.state()?;
            count_progress(worker, &state);
            self.span = state.began.zip(state.last.or(state.done));
            outcome.and(watched)
        })
    }
}

/// The time between two signals to a worker.
const INTERRUPT_INTERVAL: Nanos = Nanos::from_millis(1);
