//! Layer 4 behind a device that spreads: which target answers for an address, whether a flow stays with its target, and what a flow
//! loses when a target or the device fails.
//!
//! A target answers every message with its identity ([`server`]). This crate knows nothing of devices, of how targets are started, and
//! of what an outage means; it records.
//!
//! # Words
//!
//! - `Identity`, `Dialect`: the name and token of a target; the protocol in which its server tells them.
//! - spell: a time in which one target answered a flow.
//! - outage: a time without answers.
//! - move: another target on the same connection.

mod ask;
mod carrier;
mod dialect;
mod flows;
mod identity;
mod kinds;
mod message;
mod names;
mod options;
pub mod server;
mod sources;
mod spread;
mod target;

pub use dialect::Dialect;
pub use identity::{Identity, NAME_MAX};
pub use kinds::KINDS;
pub use server::{ClientLimits, IdentityServer, PORT, ServedTotals};
