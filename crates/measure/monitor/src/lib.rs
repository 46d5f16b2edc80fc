//! Host observation: counters sampled during a test, and the properties of a host that affect its results.
//!
//! A [`Source`] reads one file of counters, a [`HostMonitor`] turns its samples into a record of constant size, and
//! [`environment()`] records the properties of the host. All paths are under a root, so recorded trees can replace a host. This
//! crate starts no thread, reads no clock, and does not interpret the numbers.

mod environment;
mod host_monitor;
mod procfs;
mod programs;
mod quotas;
mod sources;

pub use environment::{
    DEFAULT_ROUTE, InterfaceFacts, LineRate, Queues, RingSizes, UNREAD, environment, interfaces, machine,
    note_machine_settings,
};
pub use host_monitor::{HostMonitor, ProgramNames, begins_anew};
pub use programs::{ProgramReader, ProgramTimes, socket_inodes};
pub use sources::{CounterSink, SOURCES, Source, every_source, is_slow, silence};
