//! Injects frames as if received: a program runs once per frame and passes it to the stack (`BPF_PROG_TEST_RUN`, live frames).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use fathom_engine::{Error, WorkerHandle};
use fathom_model::units::Nanos;
use fathom_sys::{
    Result,
    bpf::{
        Array, Assembler, Instruction, LiveRun, Program, ProgramType,
        Register::{R0, R1, R2, R6, R7, R9, R10},
        XdpAction,
    },
    clock,
    process::{affinity, interrupt::Interruptible, threads},
};

/// A program with the frame that it builds, and the device that seems to receive it.
#[derive(Debug)]
pub(super) struct FrameInjector {
    program: Program,
    state: Array<2>,
    frame: Vec<u8>,
    device: u32,
    /// Cores for the monitor thread, which is not bound to the core of the injecting thread.
    cores: Vec<usize>,
}

/// The index of the counter of injected frames.
const INJECTED: usize = 0;
// Byte offsets in the state.
const N_INJECTED: i16 = 0;
const STOP: i16 = 8;
/// The stack offset of the key of the state.
const KEY: i16 = -4;
/// The number of bytes that are rewritten, because a stack may have changed the page: the headers of a UDP datagram, and more.
const REWRITTEN: usize = 56;
/// Frames per batch: the budget of a NAPI poll.
const BATCH: u32 = 64;
/// Short enough that an interval of 100 ms is exact to 2 %.
const POLL_INTERVAL: Nanos = Nanos::from_millis(2);

impl FrameInjector {
    pub(super) fn load(frame: &[u8], device: u32, ends_here: bool) -> std::result::Result<Self, Error> {
        let load = || -> Result<Self> {
            let state = Array::create("fathom_state", 1)?;
            let action = if ends_here { XdpAction::Drop } else { XdpAction::Pass };
            let program = Program::load(ProgramType::Xdp, "fathom_inject", &code(frame, &state, action))?;
            let injection = Self { program, state, frame: frame.to_vec(), device, cores: affinity::allowed_cores()? };
            // A stopped program injects nothing. This run shows whether the kernel accepts the call at all.
            injection.state.set(0, &[0, 1])?;
            injection.program.run_live(&injection.frame, &LiveRun { n_runs: 1, batch: 1, from: Some(device) })?;
            injection.state.set(0, &[0, 0])?;
            Ok(injection)
        };
        load().map_err(|cause| Error::system("inject frames as if received", "CAP_BPF and CAP_NET_ADMIN", cause))
    }

    /// Injects until the trial is over.
    pub(super) fn run(&self, worker: &WorkerHandle<'_>) -> Result<()> {
        let thread = Interruptible::current()?;
        let (is_over, has_returned) = (AtomicBool::new(false), AtomicBool::new(false));
        let live = LiveRun { n_runs: u32::MAX, batch: BATCH, from: Some(self.device) };
        thread::scope(|scope| {
            let watch = threads::start_within(scope, "frame-counters", || {
                let watched = self.watch(worker);
                is_over.store(true, Ordering::Release);
                // A signal between two system calls interrupts neither, so this repeats it until the worker has noticed.
                while !has_returned.load(Ordering::Acquire) {
                    thread.interrupt();
                    clock::sleep_until(clock::now() + POLL_INTERVAL);
                }
                watched
            })?;
            let mut outcome = Ok(());
            while outcome.is_ok() && !is_over.load(Ordering::Acquire) {
                outcome = self.program.run_live(&self.frame, &live).map(drop);
            }
            has_returned.store(true, Ordering::Release);
            let watched = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            worker.raise(INJECTED, self.n_injected()?);
            outcome.and(watched)
        })
    }

    /// Reports the number of injected frames until the trial is over.
    fn watch(&self, worker: &WorkerHandle<'_>) -> Result<()> {
        affinity::allow_cores(&self.cores)?;
        while !worker.is_over() {
            worker.raise(INJECTED, self.n_injected()?);
            clock::sleep_until(clock::now() + POLL_INTERVAL);
        }
        Ok(())
    }

    fn n_injected(&self) -> Result<u64> {
        Ok(self.state.get(0)?[0])
    }
}

/// Assembles the program: it counts and rewrites the frame and returns `action`; once it is told to stop, it drops the frame.
fn code(frame: &[u8], state: &Array<2>, action: XdpAction) -> Vec<Instruction> {
    let mut a = Assembler::new();
    let ended = a.label();
    let rewritten = frame.len().min(REWRITTEN);
    a.mov(R9, R1).store(R10.word(KEY), 0).look_up(state, KEY, ended).mov(R7, R0);
    a.load(R1, R7.double(STOP)).jump_if(R1.differs(0), ended);
    // `struct xdp_md` starts with the addresses of the first byte and of the byte after the last.
    a.load(R6, R9.word(0)).load(R2, R9.word(4)).mov(R1, R6);
    a.add(R1, i32::try_from(rewritten).expect("headers are short")).jump_if(R1.above(R2), ended);
    for (bytes, at) in frame[..rewritten].chunks_exact(8).zip((0..).step_by(8)) {
        let word = u64::from_ne_bytes(bytes.try_into().expect("a chunk of eight"));
        a.load_constant(R1, word).store(R6.double(at), R1);
    }
    a.load(R1, R7.double(N_INJECTED)).add(R1, 1).store(R7.double(N_INJECTED), R1);
    a.give(action).bind(ended).give(XdpAction::Drop);
    a.assemble()
}
