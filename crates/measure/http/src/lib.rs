//! Layer 7: HTTP requests.
//!
//! [`h1`] is the protocol without I/O, [`responder`] the server at the other end, [`KINDS`] what can be measured. Knows nothing
//! of scripted users, of plans and of output.

mod conn;
pub mod failures;
pub mod h1;
mod kinds;
mod load;
mod metrics;
pub mod names;
pub mod responder;
pub mod target;
pub mod url;
pub mod users;

pub use kinds::{HttpClosed, HttpOpen, KINDS, metric_definitions};
pub use responder::{Responder, ResponderCounts, ResponderOptions};
