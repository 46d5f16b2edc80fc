//! The interfaces for watching the host: during a test, and from another host.

use fathom_model::{Environment, HostRecord, record::CounterChanges, units::Nanos};

/// Watches a host's counters during a test; the binary supplies the monitor's implementation.
pub trait Observer: Send {
    /// Describes the current state of the host, as far as it affects the results.
    fn environment(&mut self) -> Environment;

    /// Reads all counters once; `now` is the host's monotonic clock.
    fn sample(&mut self, now: Nanos);

    /// Returns the data collected since the last call and a list of the data that could not be collected.
    fn finish(&mut self) -> (HostRecord, Vec<String>);
}

/// Reads a host's counters for a view on another host.
pub trait CounterFeed: Send {
    /// Reads all counters and returns what changed since the last call; `now` is the host's monotonic clock.
    fn changes(&mut self, now: Nanos) -> CounterChanges;
}
