//! The limits of a server, and the clients that it serves.

use std::{fmt, path::PathBuf, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::policy::AllowedPeers;

use crate::{iperf3::Authenticator, sockets::ClientFilter};

/// The limits of a server.
#[derive(Clone)]
pub struct ServerOptions {
    /// The most clients at once; the next one is told that the server is busy.
    pub clients: usize,
    /// The number of tests after which the server ends.
    pub tests: Option<u64>,
    /// The time without a client after which the server ends.
    pub idle: Option<Nanos>,
    /// The limit in bits per second for all streams of a test together, and the averaging time.
    pub rate: Option<(u64, Nanos)>,
    /// The longest test in seconds.
    pub test_secs_max: Option<u32>,
    /// The addresses that are served; all others are told that the server is busy.
    pub is_client_allowed: Option<ClientFilter>,
    /// Whose packets reach the sockets at all.
    pub guests: AllowedPeers,
    /// Checks logins; `None` to serve anybody.
    pub authenticator: Option<Arc<Authenticator>>,
    /// The reporting interval.
    pub interval: Option<Nanos>,
    /// How long a receiver may receive nothing.
    pub receive_timeout: Nanos,
    /// The core that tests run on; `None` for all cores.
    pub core: Option<usize>,
    /// The file that each TCP stream sends, or writes received data to.
    pub file: Option<PathBuf>,
}

/// The default limit of clients at once: each may have 256 threads.
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
            guests: AllowedPeers::anybody(),
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
