//! A text that was not understood.

use std::fmt;

/// A text that is not what its type takes; whoever knows the option says what would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidText;

impl fmt::Display for InvalidText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not understood")
    }
}

impl std::error::Error for InvalidText {}
