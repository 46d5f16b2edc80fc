//! A watchdog thread that ends the process if a script does not return.
//!
//! Code compiled by `LuaJIT` runs no hooks, so a loop in it cannot be stopped from within: only its process can be ended. The
//! watchdog reads no clock: it counts its own ticks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
};

use fathom_engine::Error;
use fathom_model::units::Nanos;
use fathom_sys::process::threads;

/// The interval between checks of the states: a stuck script is noticed this much later than configured.
const TICK: Nanos = Nanos::from_millis(100);

/// The callbacks of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Callback {
    Load,
    Setup,
    Init,
    Request,
    Delay,
    Response,
    Done,
}

impl Callback {
    const ALL: [Self; 7] =
        [Self::Load, Self::Setup, Self::Init, Self::Request, Self::Delay, Self::Response, Self::Done];
}

impl fmt::Display for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "the script itself",
            Self::Setup => "setup()",
            Self::Init => "init()",
            Self::Request => "request()",
            Self::Delay => "delay()",
            Self::Response => "response()",
            Self::Done => "done()",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateOwner {
    /// The state of `setup` and `done`.
    Main,
    /// The state of a thread, counted from 1.
    Thread(usize),
}

impl fmt::Display for StateOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Main => f.write_str("the main state"),
            Self::Thread(number) => write!(f, "thread {number}"),
        }
    }
}

/// The heartbeat of one state, written by the thread that runs it and read by the watchdog.
#[derive(Debug)]
// Each has its own cache line, because all threads write theirs often.
#[repr(align(64))]
pub(super) struct Heartbeat {
    pub(super) owner: StateOwner,
    /// Odd while the script runs; incremented at every entry and exit.
    sequence: AtomicU64,
    callback: AtomicU8,
}

impl Heartbeat {
    pub(super) fn new(owner: StateOwner) -> Arc<Self> {
        Arc::new(Self { owner, sequence: AtomicU64::new(0), callback: AtomicU8::new(0) })
    }

    /// Calls into the script.
    #[inline]
    pub(super) fn within<T>(&self, callback: Callback, work: impl FnOnce() -> T) -> T {
        let turn = self.sequence.load(Ordering::Relaxed);
        self.callback.store(callback as u8, Ordering::Relaxed);
        self.sequence.store(turn + 1, Ordering::Relaxed);
        let done = work();
        self.sequence.store(turn + 2, Ordering::Relaxed);
        done
    }

    fn callback(&self) -> Callback {
        Callback::ALL[usize::from(self.callback.load(Ordering::Relaxed)) % Callback::ALL.len()]
    }
}

/// Watches states until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    _over: Sender<()>,
}

impl Watchdog {
    /// Calls `stuck` for each state that has been in one callback for `patience`.
    pub(super) fn start(
        vitals: Vec<Arc<Heartbeat>>,
        patience: Nanos,
        stuck: impl Fn(StateOwner, Callback) + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, over) = mpsc::channel::<()>();
        let n_ticks_max = patience.0.div_ceil(TICK.0).max(1);
        let mut seen: Vec<(u64, u64)> = vitals.iter().map(|_| (0, 0)).collect();
        let watching = threads::start("heartbeat", move || {
            while over.recv_timeout(TICK.as_duration()) == Err(RecvTimeoutError::Timeout) {
                for (vital, (turn, n_ticks)) in vitals.iter().zip(&mut seen) {
                    let now = vital.sequence.load(Ordering::Relaxed);
                    if now % 2 == 0 || now != *turn {
                        (*turn, *n_ticks) = (now, 0);
                        continue;
                    }
                    *n_ticks += 1;
                    if *n_ticks == n_ticks_max {
                        stuck(vital.owner, vital.callback());
                    }
                }
            }
        });
        let no_thread = |cause| Error::System { what: "watch over the script".to_owned(), cause };
        watching.map(|_| Self { _over: sender }).map_err(no_thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_does_not_come_back_is_told_with_what_it_is_in() {
        let vitals = vec![Heartbeat::new(StateOwner::Main), Heartbeat::new(StateOwner::Thread(3))];
        let (tell, told) = mpsc::channel();
        let stuck = vitals[1].clone();
        vitals[0].within(Callback::Setup, || ());
        let send = move |owner, callback| tell.send((owner, callback)).unwrap();
        let _watchdog = Watchdog::start(vitals, TICK, send).unwrap();
        let told = stuck.within(Callback::Response, || told.recv().unwrap());
        assert_eq!(told, (StateOwner::Thread(3), Callback::Response));
    }
}
