//! Layer 7: HTTP requests.
//!
//! [`h1`] is the protocol without I/O, [`responder`] the server at the other end, [`KINDS`] what can be measured. Knows nothing
//! of scripted users, of plans and of output.

mod books;
pub mod dial;
pub mod failures;
pub mod h1;
mod kinds;
mod lines;
mod load;
pub mod names;
pub mod responder;
pub mod url;
pub mod users;

pub use kinds::{Closed, KINDS, Open, metrics};
pub use responder::{Responder, ResponderCounts, ResponderOptions};
