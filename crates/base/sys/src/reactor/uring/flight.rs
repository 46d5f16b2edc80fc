//! Confirmed sends: one at a time per socket, because the kernel may let a later send overtake one that waits for room.

use std::collections::VecDeque;

use crate::reactor::{FixedBuffer, Token};

/// Copies up to this size are joined with already waiting ones: a single send for a pipeline of small ones.
const JOINED: usize = 16 * 1024;
/// The number of empty copies kept for reuse, and the maximum size of each: a few megabytes at most.
const SPARE: (usize, usize) = (256, JOINED);

/// Bytes that wait for their turn or are with the kernel.
pub(super) struct QueuedBytes {
    pub(super) bytes: Bytes,
    pub(super) n_sent: usize,
    /// The number of send calls that these bytes complete.
    pub(super) n_told: u32,
}

pub(super) enum Bytes {
    Fixed(FixedBuffer),
    Copied(Vec<u8>),
}

/// A send of which the kernel reports only a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SilentSend {
    Fixed(FixedBuffer),
    /// The copy in the token's slot.
    Copied,
}

/// Copies of unconfirmed sends, with one slot for each token.
///
/// There is no notification when the kernel has finished with such a copy. A reply of the peer usually follows the complete request, but
/// need not. Therefore their memory stays until the reactor ends. If a peer answers requests that it has not read until the kernel has no
/// more room, it may get bytes of a later request instead of those of an earlier one, but never any other data.
#[derive(Default)]
pub(super) struct SendCopies {
    places: Vec<Vec<u8>>,
    outgrown: Vec<Vec<u8>>,
}

impl SendCopies {
    /// Most requests fit, and twenty thousand slots take a few megabytes.
    const LEAST: usize = 128;

    pub(super) fn put(&mut self, token: Token, bytes: &[u8]) -> &[u8] {
        if self.places.len() <= token.index() {
            self.places.resize_with(token.index() + 1, Vec::new);
        }
        let place = &mut self.places[token.index()];
        if place.capacity() < bytes.len() {
            // Each is twice as large as the last, so all buffers that a token has outgrown take no more than its current one.
            let larger = Vec::with_capacity(bytes.len().next_power_of_two().max(Self::LEAST));
            let outgrown = std::mem::replace(place, larger);
            if outgrown.capacity() > 0 {
                self.outgrown.push(outgrown);
            }
        }
        place.clear();
        place.extend_from_slice(bytes);
        place
    }

    /// Gives a token a new buffer, for a socket that may send before the kernel has finished with the previous socket's data.
    pub(super) fn retire(&mut self, token: Token) {
        let place = self.places.get_mut(token.index()).map(std::mem::take);
        self.outgrown.extend(place.filter(|place| place.capacity() > 0));
    }

    /// The last content of a token's slot.
    pub(super) fn at(&self, token: Token) -> &[u8] {
        &self.places[token.index()]
    }
}

/// The unsent bytes of one socket.
#[derive(Default)]
pub(super) struct SendQueue {
    pub(super) queue: VecDeque<QueuedBytes>,
    pub(super) stage: SendStage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendStage {
    #[default]
    Idle,
    /// Checks whether an unconfirmed send has finished.
    Probing,
    /// The flight with this number is in progress.
    Flying(u32),
}

/// A send that the kernel may be reading from, even if its socket is already closed.
pub(super) struct SendInFlight {
    pub(super) token: Token,
    pub(super) generation: u32,
    pub(super) unsent: QueuedBytes,
}

/// All sends in progress, by number, and spare copies for the next ones.
#[derive(Default)]
pub(super) struct SendsInFlight {
    under_way: Vec<Option<SendInFlight>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
}

impl SendsInFlight {
    pub(super) fn add(&mut self, flight: SendInFlight) -> u32 {
        if let Some(number) = self.free.pop() {
            self.under_way[number as usize] = Some(flight);
            return number;
        }
        self.under_way.push(Some(flight));
        u32::try_from(self.under_way.len() - 1).expect("there is at most one flight per socket")
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut SendInFlight {
        self.under_way[number as usize].as_mut().expect("a flight stays until it has landed")
    }

    pub(super) fn get(&self, number: u32) -> &SendInFlight {
        self.under_way[number as usize].as_ref().expect("a flight stays until it has landed")
    }

    /// Removes a flight that the kernel has finished.
    pub(super) fn remove(&mut self, number: u32) -> SendInFlight {
        self.free.push(number);
        self.under_way[number as usize].take().expect("a flight lands once")
    }

    /// Appends a copy to the queue, joined with the last one if both are small.
    pub(super) fn enqueue(&mut self, queue: &mut VecDeque<QueuedBytes>, bytes: &[u8], n_told: u32) {
        if let Some(QueuedBytes { bytes: Bytes::Copied(last), n_told: told, .. }) = queue.back_mut()
            && last.len() + bytes.len() <= JOINED
        {
            last.extend_from_slice(bytes);
            *told += n_told;
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        queue.push_back(QueuedBytes { bytes: Bytes::Copied(copy), n_sent: 0, n_told });
    }

    /// Keeps the memory of sent bytes.
    pub(super) fn recycle(&mut self, bytes: Bytes) {
        let Bytes::Copied(mut copy) = bytes else { return };
        if self.spare.len() < SPARE.0 && copy.capacity() <= SPARE.1 {
            copy.clear();
            self.spare.push(copy);
        }
    }
}
