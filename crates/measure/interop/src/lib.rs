//! Layer 4, as other tools speak it: both ends of their protocols, so that their servers and clients can be measured with.
//!
//! One folder per tool; how bytes and datagrams move is the business of `fathom_transport`.

pub mod iperf3;
mod kinds;

pub use kinds::KINDS;
