//! Layer 4 in the protocols of other tools: both ends, so that their servers and clients can be used for measurements.
//!
//! One directory per tool. `fathom_transport` moves the bytes and datagrams.

pub mod iperf2;
pub mod iperf3;
mod kinds;
pub mod netperf;
mod refusals;
mod sockets;

pub use kinds::KINDS;
pub use sockets::{ClientFilter, ServerTotals, any_address};
