//! A proxy that records: it stands between a browser and its servers, and keeps every request with its answer as a HAR 1.2 log.
//!
//! It is made of library code for HTTP and TLS, because nothing is measured with it. This crate knows neither files nor scenarios:
//! the program writes the log, and `import` makes a scenario of it.
//!
//! # Words
//!
//! - recording: the requests that a browser sent through the proxy, with their answers.
//! - page: the requests that one click caused.
//! - origin: the server of a tunnel.

mod certificates;
mod proxy;
mod recording;
mod verification;

pub use certificates::{CertificateAuthority, CertificateError};
pub use proxy::{Proxy, ProxyError, ProxySettings};
pub use recording::{Direction, OpenExchange, Recording, RecordingCounts, RequestHead};
pub use verification::Verification;
