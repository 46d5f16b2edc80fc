//! What a source is, and where it writes what it read.

use std::{io, path::Path};

/// A file of counters, or what stands for one, which can be asked again and again.
///
/// It keeps its file open, so it stays with the root of its first sample, and with the network namespace that the process had
/// then: `/proc/net` is that of the process' first thread, whichever thread reads it.
pub trait Source: Send {
    /// What it is called in tables and losses.
    fn name(&self) -> &'static str;

    /// The counters that it may record: constants of `fathom_model::names::host`.
    fn counters(&self) -> &'static [&'static str];

    /// Records what each counter shows now; what the file does not say is left out, never recorded as 0.
    ///
    /// # Errors
    /// When the file cannot be read. Lines that are not understood are passed over.
    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()>;
}

/// Where a source writes what it read.
pub trait CounterSink {
    /// Takes one counter of one instance: `cpu1`, `eth0`, or nothing for the whole host.
    fn value(&mut self, name: &'static str, of: &str, value: u64);
}

/// The counters of a table, which stand first in each of its rows.
pub(super) const fn counters_of<T: Copy, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut row = 0;
    while row < N {
        names[row] = table[row].0;
        row += 1;
    }
    names
}
