//! How much memory a capture may use.

/// How much is kept of the connections of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrafficLimits {
    /// Open connections; then the ones without packets for the longest time are forgotten.
    pub n_connections: usize,
    /// Bytes of a connection that wait for missing ones; then these are given up.
    pub n_held_of_connection: usize,
    /// Segments of a connection that wait so.
    pub n_pieces_of_connection: usize,
    /// Bytes of all connections together that wait so.
    pub n_held: usize,
}

impl TrafficLimits {
    /// A million connections, and 64 MiB that wait; of a connection the largest window that Linux gives it by default (`tcp_rmem`),
    /// and as many segments as can be sought through for each that is lost.
    pub const USUAL: Self =
        Self { n_connections: 1 << 20, n_held_of_connection: 6 << 20, n_pieces_of_connection: 1024, n_held: 64 << 20 };
}
