//! Fragments that have waited for the first one of their datagram, and wait no longer.

/// Packets in buffers that are used again.
#[derive(Debug, Default)]
pub struct Released {
    /// The first `n` hold packets; the others are spare buffers.
    buffers: Vec<Vec<u8>>,
    n: usize,
}

impl Released {
    /// Removes all packets.
    pub fn clear(&mut self) {
        self.n = 0;
    }

    /// The packets, from their IP header on, in the order in which they came.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.buffers[..self.n].iter().map(Vec::as_slice)
    }

    /// Adds a copy of a packet.
    pub(super) fn push(&mut self, packet: &[u8]) {
        if self.n == self.buffers.len() {
            self.buffers.push(Vec::new());
        }
        packet.clone_into(&mut self.buffers[self.n]);
        self.n += 1;
    }
}
