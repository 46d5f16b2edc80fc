//! Loads that are played several times, some at the same time.

use std::{
    io::IsTerminal as _,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Context as _;
use fathom_model::units::{Frames, Nanos, grouped};
use fathom_sys::{clock, process::threads};

/// How often a load is played, and how many loads are played at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeats {
    pub(super) n: usize,
    pub(super) n_parallel: usize,
}

impl Repeats {
    pub(super) fn of(matches: &clap::ArgMatches) -> Self {
        let number = |name: &str| usize::try_from(super::values::of::<u32>(matches, name)).unwrap_or(usize::MAX);
        Self { n: number("repeat"), n_parallel: number("parallel") }
    }

    /// Plays a load with its seed and those behind it, and returns the results in the order of the seeds.
    pub(super) fn play<T: Send, E: std::error::Error + Send + Sync + 'static>(
        self,
        seed: u64,
        load: impl Fn(u64) -> Result<T, E> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let next = AtomicUsize::new(0);
        let seed_of = |idx: usize| seed.wrapping_add(u64::try_from(idx).unwrap_or(u64::MAX));
        let work = || {
            let mut results = Vec::new();
            loop {
                let idx = next.fetch_add(1, Ordering::Relaxed);
                if idx >= self.n {
                    return results;
                }
                results.push((idx, load(seed_of(idx))));
            }
        };
        let n_threads = self.n_parallel.min(self.n);
        let mut results = if n_threads <= 1 {
            work()
        } else {
            thread::scope(|scope| {
                let started: Vec<_> = (0..n_threads)
                    .map(|_| {
                        threads::start_within(scope, "simulation", work).context("cannot start a thread for a load")
                    })
                    .collect::<anyhow::Result<_>>()?;
                let joined = started.into_iter().flat_map(|thread| match thread.join() {
                    Ok(results) => results,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                anyhow::Ok(joined.collect())
            })?
        };
        results.sort_by_key(|(idx, _)| *idx);
        Ok(results.into_iter().map(|(_, result)| result).collect::<Result<_, _>>()?)
    }
}

/// How often a terminal is told how far a long simulation is.
const TOLD_EVERY: Nanos = Nanos::from_secs(2);

/// What a terminal is told while loads are played, and how fast that was.
pub(super) struct Progress {
    begin: Nanos,
    told: Nanos,
    is_shown: bool,
}

impl Progress {
    pub(super) fn begin() -> Self {
        let now = clock::now();
        Self { begin: now, told: now, is_shown: std::io::stderr().is_terminal() }
    }

    /// Tells what has ended, if nothing was told for a while.
    pub(super) fn step(&mut self, what: impl FnOnce() -> String) {
        let now = clock::now();
        if self.is_shown && now.since(self.told) >= TOLD_EVERY {
            self.told = now;
            eprintln!("  after {}: {}", now.since(self.begin), what());
        }
    }

    /// Says how many steps of a table there were, in which time.
    pub(super) fn end(&self, n_steps: u64, of: &str) {
        if self.is_shown {
            let span = clock::now().since(self.begin);
            let rate = (Frames(n_steps) / span).map(|rate| format!(", {rate}")).unwrap_or_default();
            eprintln!("{} {of} in {span}{rate}", grouped(n_steps));
        }
    }
}
