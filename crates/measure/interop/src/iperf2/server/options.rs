//! The options and the limits of a server.

use fathom_model::units::Nanos;
use fathom_sys::policy::{AllowedPeers, Policy};

use crate::{iperf2::SocketSetup, sockets::ClientFilter};

/// The protocols that a server listens for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServedProtocols {
    Tcp,
    Udp,
    #[default]
    Both,
}

/// Where a server sends or connects because a client asks for it (`-R`, `-d`, `-r`).
///
/// The source of a datagram can be forged, and iperf's protocol has no challenge that would show it. A handshake of TCP does show it.
#[derive(Clone, Default)]
pub enum BackTraffic {
    /// Nowhere.
    Never,
    /// To the other end of a connection; in datagrams only to an address that has opened a TCP test in the last 10 minutes.
    #[default]
    ProvenPeers,
    /// In datagrams also to these addresses, whose owner has agreed.
    Permitted(ClientFilter),
}

/// The options and the limits of a server.
#[derive(Clone)]
pub struct ServerOptions {
    pub protocols: ServedProtocols,
    /// The most flows at once; further ones are turned away.
    pub flows_max: usize,
    /// The number of flows after which the server ends.
    pub tests: Option<u64>,
    /// The time without a flow after which the server ends.
    pub idle: Option<Nanos>,
    /// The longest flow.
    pub time_max: Nanos,
    /// The addresses that are served.
    pub is_client_allowed: Option<ClientFilter>,
    /// Whose packets reach the sockets at all.
    pub guests: AllowedPeers,
    pub back_traffic: BackTraffic,
    /// What this host may connect and send to.
    pub policy: Policy,
    /// Whether it takes the flows that a client asked its server for, which have no header.
    pub is_back: bool,
    /// Bytes per read; `None` for iperf's default.
    pub length: Option<usize>,
    /// Whether single reads are counted (`-e`).
    pub counts_calls: bool,
    pub setup: SocketSetup,
}

/// The default limit of flows at once: each connection has a thread.
const FLOWS: usize = 256;
/// The default limit of a flow: a day.
const TIME_MAX: Nanos = Nanos::from_secs(86_400);

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            protocols: ServedProtocols::default(),
            flows_max: FLOWS,
            tests: None,
            idle: None,
            time_max: TIME_MAX,
            is_client_allowed: None,
            guests: AllowedPeers::anybody(),
            back_traffic: BackTraffic::default(),
            policy: Policy::anything(),
            is_back: false,
            length: None,
            counts_calls: false,
            setup: SocketSetup::default(),
        }
    }
}
