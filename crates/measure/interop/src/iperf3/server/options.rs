//! What a server allows, and whom it serves.

use std::{fmt, net::IpAddr, path::PathBuf, sync::Arc};

use fathom_model::units::Nanos;

use crate::iperf3::Authenticator;

/// Whom a server serves.
pub type ClientFilter = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What a server allows.
#[derive(Clone)]
pub struct ServerOptions {
    /// The most clients at once; the next one hears that the server is busy.
    pub clients: usize,
    /// The most tests; the server ends by itself after them.
    pub tests: Option<u64>,
    /// How long it waits for a client before it ends by itself.
    pub idle: Option<Nanos>,
    /// Bits per second of all streams of a test together, averaged over so long.
    pub rate: Option<(u64, Nanos)>,
    /// The longest test in seconds.
    pub test_secs_max: Option<u32>,
    /// Which addresses are served; all others hear that the server is busy.
    pub is_client_allowed: Option<ClientFilter>,
    /// Who may test; anybody without it.
    pub authenticator: Option<Arc<Authenticator>>,
    /// The distance of reports.
    pub interval: Option<Nanos>,
    /// How long a receiver may hear nothing.
    pub receive_timeout: Nanos,
    /// The cores that streams run on, none for all.
    pub core: Option<usize>,
    /// What each stream sends, or where it writes what arrives; streams of TCP only.
    pub file: Option<PathBuf>,
}

/// The clients that are served at once unless it is said: each may have 256 threads.
const CLIENTS: usize = 16;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            clients: CLIENTS,
            tests: None,
            idle: None,
            rate: None,
            test_secs_max: None,
            is_client_allowed: None,
            authenticator: None,
            interval: None,
            receive_timeout: crate::iperf3::client::RECEIVE_TIMEOUT,
            core: None,
            file: None,
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("clients", &self.clients)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}
