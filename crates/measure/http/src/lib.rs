//! Layer 7: HTTP requests.
//!
//! [`h1`] is the protocol without I/O, [`responder`] the server, [`KINDS`] the kinds of tests. This crate knows nothing of
//! scripted users, plans or output.

mod conn;
pub mod failures_by_stage;
pub mod h1;
pub mod host_names;
mod kinds;
mod load;
mod metrics;
pub mod names;
pub mod responder;
pub mod target;
pub mod url;
pub mod users;

pub use kinds::{HttpClosed, HttpOpen, KINDS, metric_definitions};
pub use metrics::lower_bounds_note;
pub use responder::{Responder, ResponderCounts, ResponderOptions};
