//! What can be measured with scripted users.

use fathom_engine::TestKind;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[&crate::scenario::execution::AppScenario, &crate::lua::AppLua];
