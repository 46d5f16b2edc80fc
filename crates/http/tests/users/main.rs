//! Scripted users against small servers on loopback, over both reactors.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

mod cast;
mod coming;
#[path = "../common/mod.rs"]
mod common;
mod conversation;
mod literal;
mod misfortunes;
mod stage;
