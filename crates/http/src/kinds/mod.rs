//! What can be measured with requests.

mod answering;
mod closed;
pub mod metrics;
mod open;
pub(crate) mod options;

pub use closed::Closed;
use fathom_engine::TestKind;
pub use open::Open;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&Closed, &Open];
