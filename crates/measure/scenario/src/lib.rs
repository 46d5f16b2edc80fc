//! A text that says what users do.
//!
//! [`parse`](fn) makes an [`ast`] of it or says all that is wrong, [`check`](fn) looks at what needs more than the text, [`format`](fn) writes
//! it as all others are written. Knows no connections.

pub mod ast;
mod blocks;
mod check;
mod diagnostic;
pub mod execution;
mod format;
mod parse;
mod write;

use check::check_text;
use fathom_engine::TestKind;

pub use check::{check, is_sound};
pub use diagnostic::{Diagnostic, Severity, render};
pub use format::format;
pub use parse::parse;

/// All kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[&execution::AppScenario];
