//! The interface of a source, and of the sink for its values.

use std::{fmt::Display, io, path::Path};

/// A file of counters, or an equivalent, that can be sampled repeatedly.
///
/// It keeps its file open, so it stays with the root of its first sample, and with the network namespace that the process had
/// then. `/proc/net` is that of the first thread of the process, whichever thread reads it.
pub trait Source: Send {
    /// The name in tables and losses.
    fn name(&self) -> &'static str;

    /// The counters that it may record: constants of `fathom_model::names::host`.
    fn counters(&self) -> &'static [&'static str];

    /// Whether a host without any of its counters is one where something could not be read.
    fn is_on_every_host(&self) -> bool {
        true
    }

    /// Whether its counters are below `/sys`, which a container or a rescue system may lack.
    fn is_below_sys(&self) -> bool {
        false
    }

    /// Whether a live view reads it only about once per second: nothing of it is needed sooner, or it costs much to read.
    fn is_slow(&self) -> bool {
        false
    }

    /// Records the current values of its counters. Values that are missing in the file are not recorded, and never as 0.
    ///
    /// # Errors
    /// If a file cannot be read, with its path and the cause; what others of its files have is recorded all the same. Lines that cannot be
    /// parsed are skipped. That a kernel, a namespace or a card has no such thing is known, and no error.
    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()>;
}

/// Returns why a source that recorded nothing did so; `None` if its host may have nothing to record.
#[must_use]
pub fn silence(source: &dyn Source, root: &Path) -> Option<&'static str> {
    let is_missing = source.is_below_sys() && !root.join("sys/kernel").exists();
    let why = if is_missing { "/sys is not mounted" } else { "none of its counters was found" };
    source.is_on_every_host().then_some(why)
}

/// Receives the values of a source.
pub trait CounterSink {
    /// Takes a counter of one instance: `cpu1`, `eth0`, or an empty name for the whole host.
    fn value(&mut self, name: &'static str, of: &str, value: u64);
}

/// Why some values of a sample are missing, for a source that records the others. Without a reason it takes no memory.
#[derive(Default)]
pub(super) struct SampleLosses(Vec<String>);

impl SampleLosses {
    /// Adds a reason.
    pub(super) fn add(&mut self, why: impl Display) {
        self.0.push(why.to_string());
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the outcome of the sample.
    pub(super) fn told(self) -> io::Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(io::Error::other(self.0.join("; "))) }
    }
}

/// The counters of a table, which are the first entry in each row.
pub(super) const fn counters_of<T: Copy, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut row = 0;
    while row < N {
        names[row] = table[row].0;
        row += 1;
    }
    names
}
