//! The kinds of tests that send requests.

mod closed;
pub mod metric_definitions;
mod open;
pub(crate) mod options;
mod responder_test;

pub use closed::HttpClosed;
use fathom_engine::TestKind;
pub use open::HttpOpen;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&HttpClosed, &HttpOpen];
