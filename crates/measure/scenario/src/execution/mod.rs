//! Users that run a scenario: its tree becomes a program, which the user engine runs.
//!
//! [`compile()`] reads files and resolves names; nothing of this is left for the run. This module knows nothing of the text's grammar.

mod checks;
mod compile;
mod cookies;
mod data_rows;
mod decoding;
mod json;
mod kind;
mod loaded_scenario;
mod meeting_point;
mod message;
mod probe;
mod program;
mod redact;
mod redirect;
mod request;
mod scenario_user;
mod scenario_users;
mod step_recorder;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod unpack;

pub use compile::{CompileContext, CompileError, CompiledScenario, compile};
pub use cookies::{CookieJar, CookieScope};
pub use data_rows::{DataLayout, DataRows, DataRowsError};
pub use json::{JsonPointer, JsonReadError};
pub use kind::{AppScenario, trace_once};
pub use loaded_scenario::{InvalidScenario, LoadedScenario};
pub use message::HttpMessage;
pub use probe::TakeProbe;
pub use redact::{is_secret, without_secrets};
pub use text::filtered;
pub use trace::Exchange;
pub use unpack::{BodyError, Unpacker};
