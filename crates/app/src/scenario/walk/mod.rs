//! Users that walk through a scenario: its tree becomes a program, which the engine of users runs.
//!
//! [`compile()`] reads files and resolves names; nothing of that is left for the run. Knows nothing of the text's grammar.

mod compile;
mod jar;
mod json;
mod kind;
mod look;
mod meeting;
mod message;
mod program;
mod redact;
mod redirect;
mod request;
mod rows;
mod script;
mod tally;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod unpack;
mod user;
mod walkers;

pub use compile::{CompileError, Compiled, Site, compile};
pub use jar::{Jar, Whereto};
pub use json::{Pointer, Unread};
pub use kind::{AppScenario, rehearse};
pub use message::Message;
pub use redact::{is_secret, without_secrets};
pub use rows::{Layout, Rows, RowsError};
pub use script::{Script, Unsound};
pub use trace::Exchange;
pub use unpack::{Unfit, Unpacker};
