//! The limits of a server: who, how fast, how long, and how many at once.

use std::{fmt, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::policy::{AllowedPeers, Policy};
use fathom_transport::payload::Payload;

use crate::sockets::ClientFilter;

/// The limits of a server.
#[derive(Clone)]
pub struct NetserverOptions {
    /// The most clients at once; each has one thread and one data connection.
    pub clients: usize,
    /// The most bits per second of a test, and the averaging time for what the client sends.
    pub rate: Option<(u64, Nanos)>,
    /// The longest test in seconds.
    pub test_secs_max: Option<u32>,
    /// The most bytes of one call or message.
    pub message_max: u32,
    /// The addresses that are served; all others are disconnected.
    pub is_client_allowed: Option<ClientFilter>,
    /// Whose packets reach the sockets at all.
    pub guests: AllowedPeers,
    /// The text that a client has to send first.
    pub passphrase: Option<String>,
    /// What the server may send to, besides that only its clients are sent to.
    pub policy: Policy,
}

/// More than the 300 clients of a usual aggregate test.
const CLIENTS: usize = 512;
/// The default limit of a message: longer ones are no faster, and each stream has a buffer of that size.
const SERVED_MESSAGE_MAX: u32 = 1 << 20;

impl Default for NetserverOptions {
    fn default() -> Self {
        Self {
            clients: CLIENTS,
            rate: None,
            test_secs_max: None,
            message_max: SERVED_MESSAGE_MAX,
            is_client_allowed: None,
            guests: AllowedPeers::anybody(),
            passphrase: None,
            policy: Policy::anything(),
        }
    }
}

impl fmt::Debug for NetserverOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetserverOptions").field("clients", &self.clients).finish_non_exhaustive()
    }
}

/// What all tests of a server share.
#[derive(Debug)]
pub(super) struct SharedSetup {
    pub(super) options: NetserverOptions,
    /// What responses are made of.
    pub(super) payload: Arc<Payload>,
}

impl SharedSetup {
    pub(super) fn new(options: NetserverOptions, seed: u64) -> Self {
        let length = usize::try_from(options.message_max).unwrap_or(usize::MAX);
        Self { payload: Arc::new(Payload::random(length, seed)), options }
    }
}
