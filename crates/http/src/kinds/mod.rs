//! What can be measured with requests.

mod closed;

pub use closed::Closed;
use fathom_engine::TestKind;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&Closed];
