//! The byte stream between a controller and a `fathom serve`: TLS 1.3 with a pinned certificate and a secret token.
//!
//! Both sides prove themselves before the protocol of agents begins: the server by the private key of the certificate whose
//! fingerprint the [`Key`] holds, the controller by the token. A server says nothing to whoever does not know it. Behind the
//! handshake a [pump](pump) makes a plain stream of the encrypted one, so nobody else needs to know of TLS.

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
