//! The refusal of a file.

use std::path::Path;

use fathom_capture::CaptureFileError;
use fathom_run::exit::{Exit, UserError};

/// Says that a file is no capture that can be read, and what to do about it.
pub(super) fn no_capture(path: &Path, error: &CaptureFileError) -> UserError {
    let refused = unusable(path, error);
    error.hint().into_iter().fold(refused, |refused, hint| refused.with_line("fix", hint))
}

/// Says that a file cannot be used, and why.
pub(super) fn unusable(path: &Path, why: &impl ToString) -> UserError {
    UserError::new(Exit::Usage, format!("cannot use {}", path.display())).with_line("why", why.to_string())
}
