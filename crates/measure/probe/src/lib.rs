//! Single packets and what comes back for them: round trips, loss, path MTU, routes, ports.
//!
//! [`ProbeTemplate`] writes probes and reads replies, a [`ProbeDriver`] decides what is asked next, a [`ProbeTransport`] is the world; [`ProbeRunner`] puts
//! them together. Courses know neither socket nor clock, so they are tested in virtual time. Nothing here knows of plans or output.

mod connect;
mod driver;
mod echo;
mod fragmenting_transport;
mod fragments;
pub mod kinds;
pub mod path_mtu;
pub mod port_scan;
mod raw;
mod reply;
pub mod route;
mod series;
#[cfg(test)]
mod simulated;
mod spoofed_source;
mod template;
mod tracker;

pub use connect::ConnectTransport;
pub use driver::{CapturedPacket, ProbeDriver, ProbeEvent, ProbeRunner, ProbeStep, ProbeTransport, SendOutcome};
pub use echo::EchoTransport;
pub use fragmenting_transport::FragmentingTransport;
pub use fragments::recorded_route;

pub use raw::{OwnDevice, RawTransport, source_address_for};
pub use reply::{IcmpError, IcmpErrorKind, Reply, ReplyContent, ReplyIpHeader, ReplyTcpHeader, TcpFlags};
pub use series::{ProbeSeries, Schedule};
pub(crate) use spoofed_source::pseudo_random;
pub use spoofed_source::random_source;
pub use template::{
    ChecksumMode, FlowRule, IpFields, ProbeFields, ProbeKind, ProbePorts, ProbeTemplate, TAGS, TIMESTAMP, TcpProbe,
};
pub use tracker::{Outage, ProbeCounts, ProbeOutcome, ProbeTracker};
