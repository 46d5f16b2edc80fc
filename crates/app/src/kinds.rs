//! What can be measured with scripted users.

use fathom_engine::TestKind;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&crate::scenario::walk::AppScenario, &crate::lua::Script];
