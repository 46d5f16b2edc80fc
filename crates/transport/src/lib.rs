//! Layer 4: TCP and UDP.
//!
//! Every kind has two sides: a responder that is prepared first and says where it listens, and an initiator that connects to it
//! while it is prepared, so that connecting is not part of what is measured (except where it is what is measured). This crate
//! knows nothing of how hosts are reached, of other layers and of output.

mod causes;
mod churn;
mod exchange;
mod flows;
mod jitter;
mod kinds;
mod link;
mod options;
mod payload;
mod sequence;
mod stream;
mod wire;

pub use kinds::KINDS;
