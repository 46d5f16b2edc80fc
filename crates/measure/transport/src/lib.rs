//! Layer 4: TCP and UDP.
//!
//! Every kind has two sides: a responder that is prepared first and reports its address, and an initiator that connects to it
//! during preparation, so that connecting is not part of the measurement unless it is the object of the test. This crate knows
//! nothing of how hosts are reached, of other layers and of output.

mod churn;
pub mod connection_setup;
pub mod datagrams;
mod flow_layout;
mod kinds;
pub mod options;
pub mod payload;
mod request_response;
mod resource_error;
pub mod stream;
pub mod tcp_sampler;
pub mod traffic;
mod worker_reading;

pub use kinds::KINDS;
