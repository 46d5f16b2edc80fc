//! Layer 7: users that follow a script.
//!
//! [`lua`] runs wrk's scripts, [`scenario`] a text of our own, and [`import`] makes such a text of what other tools recorded. How
//! bytes move is the business of `fathom_http::users`. Knows nothing of plans and of output.

pub mod import;
mod kinds;
pub mod lua;
pub mod scenario;

pub use kinds::KINDS;
