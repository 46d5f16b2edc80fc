//! Sends whose end is told: one at a time per socket, for the kernel may let a later send overtake one that waits for room.

use std::collections::VecDeque;

use crate::reactor::{FixedBuffer, Token};

/// Copies up to this size are joined with those that wait already: one send for a pipeline of small ones.
const JOINED: usize = 16 * 1024;
/// Emptied copies that are kept for later ones, and how large one may be to be kept: a few megabytes at most.
const SPARE: (usize, usize) = (256, JOINED);

/// Bytes that wait for their turn or are with the kernel.
pub(super) struct QueuedBytes {
    pub(super) bytes: Bytes,
    pub(super) n_sent: usize,
    /// How many calls of send end with these bytes.
    pub(super) n_told: u32,
}

pub(super) enum Bytes {
    Fixed(FixedBuffer),
    Copied(Vec<u8>),
}

/// A send of which the kernel tells only a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SilentSend {
    Fixed(FixedBuffer),
    /// The copy at the token's place.
    Copied,
}

/// Copies of what is sent without a word of success, one place for each token.
///
/// Nobody says when the kernel is done with such a copy: an answer of the peer as a rule follows all of what was asked, but need not.
/// So their memory stays until the reactor ends. A peer that answers what it has not read, until the kernel has no more room, may be
/// sent bytes of a later request in place of those of an earlier one, and never anything else.
#[derive(Default)]
pub(super) struct SendCopies {
    places: Vec<Vec<u8>>,
    outgrown: Vec<Vec<u8>>,
}

impl SendCopies {
    /// Most requests fit, and twenty thousand places are a few megabytes.
    const LEAST: usize = 128;

    pub(super) fn put(&mut self, token: Token, bytes: &[u8]) -> &[u8] {
        if self.places.len() <= token.index() {
            self.places.resize_with(token.index() + 1, Vec::new);
        }
        let place = &mut self.places[token.index()];
        if place.capacity() < bytes.len() {
            // Each is twice as large as the one before, so all that a token has outgrown is no more than what it has.
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

    /// Gives a token another place, for a socket that may send before the kernel is done with what the one before it sent.
    pub(super) fn retire(&mut self, token: Token) {
        let place = self.places.get_mut(token.index()).map(std::mem::take);
        self.outgrown.extend(place.filter(|place| place.capacity() > 0));
    }

    /// What was put at a token's place last.
    pub(super) fn at(&self, token: Token) -> &[u8] {
        &self.places[token.index()]
    }
}

/// What one socket has yet to send.
#[derive(Default)]
pub(super) struct SendQueue {
    pub(super) queue: VecDeque<QueuedBytes>,
    pub(super) stage: SendStage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendStage {
    #[default]
    Idle,
    /// It is being asked whether an unconfirmed send is over.
    Probing,
    /// The flight with this number is under way.
    Flying(u32),
}

/// A send that the kernel may be reading from, whether its socket is still wanted or not.
pub(super) struct SendInFlight {
    pub(super) token: Token,
    pub(super) generation: u32,
    pub(super) unsent: QueuedBytes,
}

/// All sends under way, by number, and copies for the next ones.
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

    /// Takes a flight that the kernel is done with.
    pub(super) fn remove(&mut self, number: u32) -> SendInFlight {
        self.free.push(number);
        self.under_way[number as usize].take().expect("a flight lands once")
    }

    /// Queues a copy behind what waits, joined with it if both are small.
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

    /// Keeps the memory of bytes that are sent.
    pub(super) fn recycle(&mut self, bytes: Bytes) {
        let Bytes::Copied(mut copy) = bytes else { return };
        if self.spare.len() < SPARE.0 && copy.capacity() <= SPARE.1 {
            copy.clear();
            self.spare.push(copy);
        }
    }
}
