//! One connection, small enough that tens of thousands fit, and its requests in flight.

use fathom_engine::load::{Ring, SendTimes};
use fathom_model::units::Nanos;

use crate::{conn::Connection, h1::ResponseReader};

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) conn: Connection,
    pub(super) reader: ResponseReader,
    /// When the first byte of the current answer arrived.
    pub(super) first_byte_at: Option<Nanos>,
    pub(super) in_flight: Ring,
    /// Failed connects and requests since the last answer.
    pub(super) n_failures: u32,
    /// Requests sent since it was opened.
    pub(super) n_sent: u64,
}

impl ClientConnection {
    /// Creates a connection to one of the servers.
    pub(super) fn new(route: u16) -> Self {
        Self {
            conn: Connection::new(route),
            reader: ResponseReader::default(),
            first_byte_at: None,
            in_flight: Ring::default(),
            n_failures: 0,
            n_sent: 0,
        }
    }

    /// Whether it has neither sent nor failed so far.
    pub(super) fn is_untried(&self) -> bool {
        self.n_sent == 0 && self.n_failures == 0
    }

    /// Resets it for the first request on a new socket.
    pub(super) fn reset_for_new_socket(&mut self) {
        self.reader.reset();
        (self.first_byte_at, self.in_flight, self.n_sent) = (None, Ring::default(), 0);
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlightRequest {
    pub(super) times: SendTimes,
    /// The index of the request among those of its server.
    pub(super) request_idx: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_thousand_connections_fit_in_a_few_mebibytes() {
        assert!(
            size_of::<ClientConnection>() + size_of::<InFlightRequest>() <= 256,
            "{}",
            size_of::<ClientConnection>()
        );
    }
}
