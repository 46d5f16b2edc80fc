//! Layer 4: TCP and UDP.
//!
//! Every kind has two sides: a responder that is prepared first and says where it listens, and an initiator that connects to it
//! while it is prepared, so that connecting is not part of what is measured (except where it is what is measured). This crate
//! knows nothing of how hosts are reached, of other layers and of output.

mod churn;
mod connection_setup;
mod datagrams;
mod error_counts;
mod kinds;
mod options;
mod payload;
mod protocol;
mod request_response;
mod stream;
mod tcp_sampler;
mod traffic;

pub use kinds::KINDS;
pub use protocol::iperf3;
