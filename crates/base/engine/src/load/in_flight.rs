//! The requests in flight of each connection, in the order in which they were sent.

/// The requests in flight of one connection, as positions in its part of [`InFlight`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Ring {
    front: u16,
    n: u16,
}

impl Ring {
    /// Returns the number of requests in flight.
    #[inline]
    #[must_use]
    pub fn n(self) -> u16 {
        self.n
    }
}

/// The requests in flight of all connections of a worker: one ring per connection, allocated once.
///
/// The positions are with the connections, which are in the cache when one of their requests begins or ends.
#[derive(Debug)]
pub struct InFlight<T> {
    requests: Vec<T>,
    depth: usize,
}

impl<T: Copy + Default> InFlight<T> {
    /// Creates room for `depth` requests, at least one, on each connection.
    #[must_use]
    pub fn new(n_connections: usize, depth: u16) -> Self {
        let depth = usize::from(depth.max(1));
        Self { requests: vec![T::default(); n_connections * depth], depth }
    }

    #[inline]
    fn place(&self, connection: usize, ring: Ring, nth: u16) -> usize {
        let place = usize::from(ring.front) + usize::from(nth);
        connection * self.depth + if place < self.depth { place } else { place - self.depth }
    }

    /// Returns the oldest request in flight on a connection.
    #[inline]
    #[must_use]
    pub fn front(&self, connection: usize, ring: Ring) -> Option<T> {
        (ring.n > 0).then(|| self.requests[self.place(connection, ring, 0)])
    }

    /// Appends a request.
    ///
    /// # Panics
    /// There is no room for it.
    #[inline]
    pub fn push(&mut self, connection: usize, ring: &mut Ring, request: T) {
        assert!(usize::from(ring.n) < self.depth, "{} in flight", ring.n);
        let place = self.place(connection, *ring, ring.n);
        self.requests[place] = request;
        ring.n += 1;
    }

    /// Removes the oldest request, which has been answered or given up.
    #[inline]
    pub fn pop(&mut self, connection: usize, ring: &mut Ring) -> Option<T> {
        let request = self.front(connection, *ring)?;
        ring.n -= 1;
        ring.front = if usize::from(ring.front) + 1 < self.depth { ring.front + 1 } else { 0 };
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_in_the_order_in_which_they_were_sent() {
        let (mut in_flight, mut ring) = (InFlight::new(2, 3), Ring::default());
        let (mut n_sent, mut n_answered) = (0, 0);
        for _ in 0..20 {
            while ring.n() < 3 {
                in_flight.push(1, &mut ring, n_sent);
                n_sent += 1;
            }
            for _ in 0..2 {
                assert_eq!(in_flight.pop(1, &mut ring), Some(n_answered));
                n_answered += 1;
            }
        }
        assert_eq!(in_flight.pop(1, &mut ring), Some(n_answered));
        assert!(in_flight.pop(1, &mut ring).is_none() && in_flight.front(1, ring).is_none());
        assert!(in_flight.front(0, ring).is_none(), "the other connection has sent nothing");
    }
}
