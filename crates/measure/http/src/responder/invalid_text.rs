//! The error of a text that cannot be parsed.

use std::fmt;

/// A text that does not parse; the caller, who knows the option, names the valid forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidText;

impl fmt::Display for InvalidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not understood")
    }
}

impl std::error::Error for InvalidText {}
