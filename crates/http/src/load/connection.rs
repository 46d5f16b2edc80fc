//! One connection, small enough that tens of thousands fit, and the requests under way on it.

use fathom_model::units::Nanos;

use crate::{h1::ResponseReader, lines::Line};

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) line: Line,
    pub(super) reader: ResponseReader,
    /// When the answer under way began.
    pub(super) first_byte: Option<Nanos>,
    /// The place of the oldest request under way in its part of [`Asked`], and how many there are.
    front: u16,
    pub(super) n_asked: u16,
    /// Whether it stands in the list of free connections, where it may have become busy or shut meanwhile.
    pub(super) is_listed: bool,
    /// Connects and requests that failed since the last answer.
    pub(super) n_failures: u32,
    /// Requests sent since it was opened.
    pub(super) n_sent: u64,
}

impl Connection {
    /// To one of the servers.
    pub(super) fn new(route: u16) -> Self {
        Self {
            line: Line::new(route),
            reader: ResponseReader::default(),
            first_byte: None,
            front: 0,
            n_asked: 0,
            is_listed: false,
            n_failures: 0,
            n_sent: 0,
        }
    }

    /// Whether nothing has come of it so far, not even a failure.
    pub(super) fn is_untried(&self) -> bool {
        self.n_sent == 0 && self.n_failures == 0
    }

    /// Ready for the first request on a new socket.
    pub(super) fn begin(&mut self) {
        self.reader.reset();
        (self.first_byte, self.front, self.n_asked, self.n_sent) = (None, 0, 0, 0);
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ask {
    /// When it was sent, on the monotonic clock.
    pub(super) sent_at: Nanos,
    /// When it was to be sent; the same in a closed load.
    pub(super) intended: Nanos,
    /// Which of the requests of its server.
    pub(super) number: u16,
}

/// The requests under way of all connections: a ring per connection, allocated once.
#[derive(Debug)]
pub(super) struct Asked {
    asks: Vec<Ask>,
    depth: usize,
}

impl Asked {
    /// Room for `depth` requests on each connection.
    pub(super) fn new(n_connections: usize, depth: u16) -> Self {
        let depth = usize::from(depth.max(1));
        Self { asks: vec![Ask::default(); n_connections * depth], depth }
    }

    fn place(&self, idx: usize, nth: u16) -> usize {
        idx * self.depth + usize::from(nth) % self.depth
    }

    /// The oldest request under way on a connection.
    pub(super) fn front(&self, idx: usize, connection: &Connection) -> Option<Ask> {
        (connection.n_asked > 0).then(|| self.asks[self.place(idx, connection.front)])
    }

    /// Adds a request behind the others; there must be room for it.
    pub(super) fn push(&mut self, idx: usize, connection: &mut Connection, ask: Ask) {
        debug_assert!(usize::from(connection.n_asked) < self.depth, "{} under way", connection.n_asked);
        let place = self.place(idx, connection.front + connection.n_asked);
        self.asks[place] = ask;
        connection.n_asked += 1;
    }

    /// Takes the oldest request, which has been answered or given up.
    pub(super) fn pop(&mut self, idx: usize, connection: &mut Connection) -> Option<Ask> {
        let ask = self.front(idx, connection)?;
        connection.n_asked -= 1;
        connection.front = u16::try_from((usize::from(connection.front) + 1) % self.depth).unwrap_or(0);
        connection.first_byte = None;
        Some(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_the_order_in_which_they_were_sent() {
        let mut asked = Asked::new(2, 3);
        let mut connection = Connection::new(0);
        let (mut n_sent, mut n_answered) = (0, 0);
        for _ in 0..20 {
            while connection.n_asked < 3 {
                asked.push(1, &mut connection, Ask { sent_at: Nanos(n_sent), ..Ask::default() });
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
        assert!(size_of::<Connection>() + size_of::<Ask>() <= 256, "{}", size_of::<Connection>());
    }
}
