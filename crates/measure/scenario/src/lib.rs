//! The language of scenarios, which describe the behavior of users.
//!
//! [`parse`](fn) builds an [`ast`] or reports all errors, [`check`](fn) runs the checks that need more than the grammar,
//! [`format`](fn) writes the standard form. This crate knows no connections.

pub mod ast;
mod blocks;
mod check;
mod diagnostic;
pub mod execution;
mod format;
mod parse;
pub mod write;

use check::check_text;
use fathom_engine::TestKind;

pub use check::{check, is_sound};
pub use diagnostic::{Diagnostic, Severity, render};
pub use format::format;
pub use parse::parse;

/// All kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[&execution::AppScenario];
