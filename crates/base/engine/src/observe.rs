//! The seam to what watches the host beside a test.

use fathom_model::{Environment, HostRecord, units::Nanos};

/// Watches a host's counters beside a test; the binary brings the monitor's.
pub trait Observer: Send {
    /// What the host is now, as far as it bears on the numbers.
    fn environment(&mut self) -> Environment;

    /// Reads all counters once; `now` is the host's monotonic clock.
    fn sample(&mut self, now: Nanos);

    /// What was seen since the last call, and what could not be seen.
    fn finish(&mut self) -> (HostRecord, Vec<String>);
}
