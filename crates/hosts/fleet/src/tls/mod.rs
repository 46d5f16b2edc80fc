//! The byte stream between a controller and a `fathom serve`: TLS 1.3 with a pinned certificate and a secret token.
//!
//! Both sides authenticate before the agent protocol begins: the server with the private key of the certificate whose fingerprint is in the
//! [`Key`], the controller with the token. A server sends no application data to a peer without the token. After the handshake a
//! [pump](pump) converts the encrypted stream to a plain one, so no other code deals with TLS.

mod client;
mod handshake;
mod key;
mod pump;
mod refusals;
mod server;
mod unauthenticated;

pub use client::connect;
pub use key::{Identity, Key};
pub use refusals::{RefusalCounts, RefusalReason};
pub use server::{ControllerHandler, Server, ServerLimits};
