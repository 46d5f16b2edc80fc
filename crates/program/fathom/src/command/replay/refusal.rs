//! The refusal of a file.

use std::path::Path;

use fathom_run::exit::{Exit, UserError};

/// Says that a file cannot be used, and why.
pub(super) fn unusable(path: &Path, why: &impl ToString) -> UserError {
    UserError::new(Exit::Usage, format!("cannot use {}", path.display())).with_line("why", why.to_string())
}
