//! How much memory a capture may use.

/// How much is kept of the connections of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrafficLimits {
    /// Open connections; then the ones without packets for the longest time are forgotten.
    pub n_connections: usize,
    /// Bytes of a connection that wait for missing ones; then these are given up.
    pub n_held_of_connection: usize,
    /// The same of all connections together.
    pub n_held: usize,
}

impl TrafficLimits {
    /// A million connections; the largest window that Linux gives a connection by default (`tcp_rmem`); 64 MiB in all.
    pub const USUAL: Self = Self { n_connections: 1 << 20, n_held_of_connection: 6 << 20, n_held: 64 << 20 };
}
