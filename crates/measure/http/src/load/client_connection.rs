//! One connection, small enough that tens of thousands fit, and its requests in flight.

use fathom_model::units::Nanos;

use crate::{conn::Connection, h1::ResponseReader};

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) conn: Connection,
    pub(super) reader: ResponseReader,
    /// When the first byte of the current answer arrived.
    pub(super) first_byte_at: Option<Nanos>,
    /// The index of the oldest request in flight in this connection's part of [`InFlight`], and the number of requests.
    front: u16,
    pub(super) n_in_flight: u16,
    /// Whether it is in the list of free connections. It may have become busy or closed since it was listed.
    pub(super) is_listed: bool,
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
            front: 0,
            n_in_flight: 0,
            is_listed: false,
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
        (self.first_byte_at, self.front, self.n_in_flight, self.n_sent) = (None, 0, 0, 0);
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlightRequest {
    /// When it was sent, on the monotonic clock.
    pub(super) sent_at: Nanos,
    /// When it was due; the same as `sent_at` in a closed load.
    pub(super) intended: Nanos,
    /// The index of the request among those of its server.
    pub(super) request_idx: u16,
}

/// The requests in flight of all connections: one ring per connection, allocated once.
#[derive(Debug)]
pub(super) struct InFlight {
    requests: Vec<InFlightRequest>,
    depth: usize,
}

impl InFlight {
    /// Creates room for `depth` requests on each connection.
    pub(super) fn new(n_connections: usize, depth: u16) -> Self {
        let depth = usize::from(depth.max(1));
        Self { requests: vec![InFlightRequest::default(); n_connections * depth], depth }
    }

    fn place(&self, idx: usize, nth: u16) -> usize {
        idx * self.depth + usize::from(nth) % self.depth
    }

    /// The oldest request in flight on a connection.
    pub(super) fn front(&self, idx: usize, connection: &ClientConnection) -> Option<InFlightRequest> {
        (connection.n_in_flight > 0).then(|| self.requests[self.place(idx, connection.front)])
    }

    /// Appends a request; there must be room for it.
    pub(super) fn push(&mut self, idx: usize, connection: &mut ClientConnection, ask: InFlightRequest) {
        debug_assert!(usize::from(connection.n_in_flight) < self.depth, "{} under way", connection.n_in_flight);
        let place = self.place(idx, connection.front + connection.n_in_flight);
        self.requests[place] = ask;
        connection.n_in_flight += 1;
    }

    /// Removes the oldest request, which has been answered or given up.
    pub(super) fn pop(&mut self, idx: usize, connection: &mut ClientConnection) -> Option<InFlightRequest> {
        let ask = self.front(idx, connection)?;
        connection.n_in_flight -= 1;
        connection.front = u16::try_from((usize::from(connection.front) + 1) % self.depth).unwrap_or(0);
        connection.first_byte_at = None;
        Some(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_the_order_in_which_they_were_sent() {
        let mut asked = InFlight::new(2, 3);
        let mut connection = ClientConnection::new(0);
        let (mut n_sent, mut n_answered) = (0, 0);
        for _ in 0..20 {
            while connection.n_in_flight < 3 {
                asked.push(
                    1,
                    &mut connection,
                    InFlightRequest { sent_at: Nanos(n_sent), ..InFlightRequest::default() },
                );
                n_sent += 1;
            }
            for _ in 0..2 {
                assert_eq!(asked.pop(1, &mut connection).map(|ask| ask.sent_at), Some(Nanos(n_answered)));
                n_answered += 1;
            }
        }
        assert_eq!(asked.pop(1, &mut connection).map(|ask| ask.sent_at), Some(Nanos(n_answered)));
        assert!(asked.pop(1, &mut connection).is_none() && asked.front(1, &connection).is_none());
    }

    #[test]
    fn sixty_thousand_connections_fit_in_a_few_mebibytes() {
        assert!(
            size_of::<ClientConnection>() + size_of::<InFlightRequest>() <= 256,
            "{}",
            size_of::<ClientConnection>()
        );
    }
}
