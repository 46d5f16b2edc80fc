//! A test in this process that a signal ends.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use fathom_engine::StopFlag;
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{signal, threads},
};

/// How often the end of the test is looked for.
const CHECK_EVERY: Nanos = Nanos::from_millis(20);

/// Runs a function that signals stop: at once, or after the time in which it may end with its result.
pub(crate) fn run_stoppable<T: Send>(
    stop: &StopFlag,
    grace: Option<Nanos>,
    work: impl FnOnce() -> T + Send,
) -> anyhow::Result<T> {
    // A shell ignores SIGINT in the background jobs of a script, but the tools still end on it.
    let signals = signal::watch_also_ignored()?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = threads::start_within(scope, "work", || {
            let result = work();
            is_done.store(true, Ordering::Release);
            result
        })?;
        let is_over = || is_done.load(Ordering::Acquire) || worker.is_finished();
        let mut is_interrupted = false;
        while !is_over() && !is_interrupted {
            is_interrupted = matches!(signals.wait_until(clock::now() + CHECK_EVERY), Ok(Some(_)));
        }
        if let Some(grace) = grace.filter(|_| is_interrupted) {
            stop.finish();
            let deadline = clock::now() + grace;
            while !is_over() && clock::now() < deadline {
                clock::sleep_until(clock::now() + CHECK_EVERY);
            }
        }
        if is_interrupted && (grace.is_none() || !is_over()) {
            // From here on, only the end of the run is left to wait for.
            stop.abort();
        }
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
