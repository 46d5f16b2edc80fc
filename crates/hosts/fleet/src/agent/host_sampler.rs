//! Samples the host's counters before, during and after a test.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::JoinHandle,
};

use fathom_engine::Observer;
use fathom_model::{HostRecord, units::Nanos};
use fathom_sys::clock;

use crate::threads;
use crate::threads::panic_text;

/// Five samples a second reveal a stall of a quarter of a second, and cost less than a thousandth of a core.
const SAMPLE_EVERY: Nanos = Nanos::from_millis(200);

/// A role that waits for longer has lost packets: the first SYN is sent again after a second (RFC 6298 section 2).
const PATIENCE: Nanos = Nanos::from_millis(500);

/// An observer that runs while a role waits for its start, and begins only if that takes long; dropping it stops the observer.
pub(super) struct WaitSampler {
    stop: Sender<()>,
    thread: io::Result<JoinHandle<Option<HostRecord>>>,
}

impl WaitSampler {
    pub(super) fn start(observer: fn() -> Box<dyn Observer>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = threads::start("wait-counters", move || {
            if stopped.recv_timeout(PATIENCE.as_duration()) != Err(RecvTimeoutError::Timeout) {
                return None;
            }
            let mut observer = observer();
            observer.sample(clock::now());
            // A role that starts needs nothing more.
            stopped.recv().ok()?;
            observer.sample(clock::now());
            Some(observer.finish().0)
        });
        Self { stop, thread }
    }

    /// Returns the counters since the wait took long; `None` if it did not.
    pub(super) fn finish(self) -> Option<HostRecord> {
        // A thread that has ended counted nothing.
        let _ = self.stop.send(());
        self.thread.ok()?.join().ok()?
    }
}

/// An observer that runs during a test; dropping it stops the observer.
pub(super) struct HostSampler {
    stop: Sender<()>,
    thread: io::Result<JoinHandle<(HostRecord, Vec<String>)>>,
}

impl HostSampler {
    /// Takes a sample before the start, then regular samples from the start on.
    pub(super) fn start(mut observer: Box<dyn Observer>, start: Nanos) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let before = clock::thread_cpu();
        // In this thread, because on a busy machine a new one may begin after the test.
        observer.sample(clock::now());
        let first_cost = clock::thread_cpu() - before;
        let thread = threads::start("host-counters", move || {
            let mut next = start;
            loop {
                let left = next.since(clock::now());
                if stopped.recv_timeout(left.as_duration()) != Err(RecvTimeoutError::Timeout) {
                    observer.sample(clock::now());
                    let (record, unavailable) = observer.finish();
                    return (
                        HostRecord { sampling_cpu_ns: Some(first_cost + clock::thread_cpu()), ..record },
                        unavailable,
                    );
                }
                let now = clock::now();
                observer.sample(now);
                // After a slow sample, the next one stays on schedule; missed ones are skipped.
                next += SAMPLE_EVERY * (1 + now.since(next).0 / SAMPLE_EVERY.0);
            }
        });
        Self { stop, thread }
    }

    /// Takes a sample after the end; returns the record and a list of the data that could not be collected.
    pub(super) fn finish(self) -> (Option<HostRecord>, Vec<String>) {
        drop(self.stop);
        match self.thread.map(JoinHandle::join) {
            Ok(Ok((record, unavailable))) => (Some(record), unavailable),
            Err(cause) => (None, vec![format!("the host's counters are lost: {cause}")]),
            Ok(Err(panic)) => (None, vec![format!("the host's counters are lost: {}", panic_text(panic.as_ref()))]),
        }
    }
}
