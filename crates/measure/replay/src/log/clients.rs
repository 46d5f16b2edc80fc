//! Connections of clients, which logs do not tell: those on which their requests can have been sent.

use std::collections::HashMap;

use fathom_model::units::Nanos;

/// A client that sends nothing for so long has closed its connection: the usual time of servers (nginx waits 75 s, Apache 5 s).
const IDLE: Nanos = Nanos::from_secs(60);
/// Clients that are remembered in a generation.
const CLIENTS_MAX: usize = 1 << 18;
/// Connections of a client at the same time.
const CONNECTIONS_MAX: usize = 256;

/// A connection of a client.
#[derive(Debug, Clone, Copy)]
struct OpenConnection {
    number: u64,
    opened: Nanos,
    /// When its last answer was over.
    free: Nanos,
}

/// The connections of all clients that sent something lately.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Those that sent since the last change of generations.
    recent: HashMap<u64, Vec<OpenConnection>>,
    /// Those of the generation before.
    older: HashMap<u64, Vec<OpenConnection>>,
    changed: Nanos,
    pub(super) n_connections: u64,
}

impl Clients {
    /// Returns the number of a connection, and when it was opened, for a request that takes the time from `begin` to `end`:
    /// one of its client that is open and has no request at that time, or else a new one.
    pub(super) fn connection(&mut self, client: Option<u64>, begin: Nanos, end: Nanos) -> (u64, Nanos) {
        let new = OpenConnection { number: self.n_connections, opened: begin, free: end };
        let Some(client) = client else {
            self.n_connections += 1;
            return (new.number, new.opened);
        };
        if begin.since(self.changed) > IDLE || self.recent.len() >= CLIENTS_MAX {
            self.older = std::mem::take(&mut self.recent);
            self.changed = begin;
        }
        let older = &mut self.older;
        let open = self.recent.entry(client).or_insert_with(|| older.remove(&client).unwrap_or_default());
        open.retain(|connection| begin.since(connection.free) <= IDLE);
        let is_full = open.len() >= CONNECTIONS_MAX;
        let first = open.iter_mut().min_by_key(|connection| connection.free);
        if let Some(connection) = first.filter(|connection| is_full || connection.free <= begin) {
            connection.free = connection.free.max(end);
            return (connection.number, connection.opened);
        }
        open.push(new);
        self.n_connections += 1;
        (new.number, new.opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_connection_until_it_pauses_and_more_for_requests_at_the_same_time() {
        let mut clients = Clients::default();
        let mut number =
            |client, begin, end| clients.connection(client, Nanos::from_secs(begin), Nanos::from_secs(end)).0;
        assert_eq!([number(Some(7), 0, 0), number(Some(7), 1, 5), number(Some(8), 1, 1)], [0, 0, 1]);
        assert_eq!([number(Some(7), 2, 3), number(Some(7), 4, 9), number(Some(7), 6, 6)], [2, 2, 0]);
        assert_eq!([number(Some(8), 61, 61), number(Some(8), 122, 122), number(None, 122, 122)], [1, 3, 4]);
        assert_eq!(number(Some(7), 122, 122), 5);
    }
}
