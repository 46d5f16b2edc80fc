//! Single packets and what comes back for them: round trips, loss, path MTU, routes, ports.
//!
//! [`Conversation`] writes probes and reads replies, a [`Course`] decides what is asked next, a [`Line`] is the world; [`Conduct`] puts
//! them together. Courses know neither socket nor clock, so they are tested in virtual time. Nothing here knows of plans or output.

mod connect;
mod conversation;
mod course;
mod echo;
mod foreign;
mod fragments;
mod ledger;
pub mod path_mtu;
pub mod port_scan;
mod raw;
mod reply;
pub mod route;
mod series;
#[cfg(test)]
mod simulated;

pub use connect::ConnectLine;
pub use conversation::{Ask, Checksum, Conversation, FlowRule, IpAsk, Order, Ports, TAGS, TIMESTAMP, TcpAsk};
pub use course::{Conduct, Course, Event, Handed, Line, Passed, Step};
pub use echo::EchoLine;
pub(crate) use foreign::mixed;
pub use foreign::random_source;
pub use fragments::{Fragmenting, recorded_route};
pub use ledger::{Counts, Fate, Gap, Ledger};
pub use raw::{OwnDevice, RawLine, source_towards};
pub use reply::{Complaint, IpSeen, Reply, TcpFlags, TcpSeen, Trouble, What};
pub use series::{Schedule, Series};
