//! TLS between TCP and the protocol above it, decrypted by the secrets that a client has logged.
//!
//! A [`TlsObserver`] stands before the observer of the protocol, and tells it of the plaintext as if it had been sent without TLS. It is
//! known which records, secrets and ciphers there are, and nothing of what is in the plaintext.

mod cipher;
mod counts;
mod handshake;
mod keys;
mod observer;
mod record;
mod session;

pub use counts::{TlsCounts, TlsFate};
pub use keys::{KeyLog, KeyLogError};
pub use observer::TlsObserver;
