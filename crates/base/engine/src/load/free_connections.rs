//! The connections that wait for a request of an open load.

/// For each target, its connections without a request. The one used last is on top, because its memory is still in the cache.
#[derive(Debug)]
pub(super) struct FreeConnections {
    stacks: Vec<Vec<u32>>,
    /// By connection; one that became busy or closed meanwhile stays listed until it is on top.
    is_listed: Vec<bool>,
}

impl FreeConnections {
    /// Makes room for `n_connections`, none of which is free.
    pub(super) fn new(n_targets: usize, n_connections: usize) -> Self {
        let room = n_connections.div_ceil(n_targets.max(1));
        let stacks = (0..n_targets).map(|_| Vec::with_capacity(room)).collect();
        Self { stacks, is_listed: vec![false; n_connections] }
    }

    /// Lists a connection, unless it still is.
    pub(super) fn push(&mut self, target: usize, connection: usize) {
        if !self.is_listed[connection] {
            self.is_listed[connection] = true;
            self.stacks[target].push(u32::try_from(connection).expect("there are fewer than 2^32 connections"));
        }
    }

    /// Returns the connection on top.
    pub(super) fn last(&self, target: usize) -> Option<usize> {
        self.stacks[target].last().map(|connection| *connection as usize)
    }

    /// Removes the connection on top.
    pub(super) fn pop(&mut self, target: usize) {
        if let Some(connection) = self.stacks[target].pop() {
            self.is_listed[connection as usize] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_listed_once_and_the_last_comes_first() {
        let mut free = FreeConnections::new(2, 4);
        for (target, connection) in [(0, 1), (1, 3), (0, 2), (0, 1), (0, 2)] {
            free.push(target, connection);
        }
        let mut order = Vec::new();
        while let Some(connection) = free.last(0) {
            order.push(connection);
            free.pop(0);
        }
        assert_eq!((order, free.last(1)), (vec![2, 1], Some(3)));
        free.push(0, 1);
        assert_eq!(free.last(0), Some(1), "it is listed again after it was taken");
    }
}
