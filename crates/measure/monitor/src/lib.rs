//! What the hosts did meanwhile: counters sampled beside a test, and the facts of a host that bear on its numbers.
//!
//! A [`Source`] reads one file of counters, a [`HostMonitor`] turns its samples into a record of constant size, and
//! [`environment()`] writes down what the host is. All paths lie under a root, so that recorded trees take the place of a host.
//! Nothing here starts a thread or reads a clock, and nothing judges what the numbers mean.

mod environment;
mod host_monitor;
mod procfs;
mod sources;

pub use environment::{InterfaceFacts, LineRate, Queues, environment, interfaces, machine};
pub use host_monitor::HostMonitor;
pub use sources::{CounterSink, SOURCES, Source, every_source};
