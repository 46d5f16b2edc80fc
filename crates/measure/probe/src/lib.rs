//! Single packets and the answers to them: round trips, loss, path MTU, routes, ports.
//!
//! A [`ProbeTemplate`] writes probes and parses replies, a [`ProbeDriver`] decides what to send next, a [`ProbeTransport`] is the
//! network, and a [`ProbeRunner`] combines them. Drivers know neither sockets nor clocks, so they are tested in virtual time. The
//! code outside `kinds` knows no plans and no output.

mod connect;
mod driver;
mod echo;
mod fragment_test;
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
