//! Sends whose end is told: one at a time per socket, for the kernel may let a later send overtake one that waits for room.

use std::collections::VecDeque;

use crate::reactor::{Fixed, Token};

/// Copies up to this size are joined with those that wait already: one send for a pipeline of small ones.
const JOINED: usize = 16 * 1024;
/// Emptied copies that are kept for later ones, and how large one may be to be kept: a few megabytes at most.
const SPARE: (usize, usize) = (256, JOINED);

/// Bytes that wait for their turn or are with the kernel.
pub(super) struct Unsent {
    pub(super) bytes: Bytes,
    pub(super) n_sent: usize,
    /// How many calls of send end with these bytes.
    pub(super) n_told: u32,
}

pub(super) enum Bytes {
    Fixed(Fixed),
    Copied(Vec<u8>),
}

/// What one socket has yet to send.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) queue: VecDeque<Unsent>,
    pub(super) stage: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Idle,
    /// It is being asked whether an unconfirmed send is over.
    Probing,
    /// The flight with this number is under way.
    Flying(u32),
}

/// A send that the kernel may be reading from, whether its socket is still wanted or not.
pub(super) struct Flight {
    pub(super) token: Token,
    pub(super) generation: u32,
    pub(super) unsent: Unsent,
}

/// All sends under way, by number, and copies for the next ones.
#[derive(Default)]
pub(super) struct Flights {
    under_way: Vec<Option<Flight>>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
}

impl Flights {
    pub(super) fn add(&mut self, flight: Flight) -> u32 {
        if let Some(number) = self.free.pop() {
            self.under_way[number as usize] = Some(flight);
            return number;
        }
        self.under_way.push(Some(flight));
        u32::try_from(self.under_way.len() - 1).expect("there is at most one flight per socket")
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut Flight {
        self.under_way[number as usize].as_mut().expect("a flight stays until it has landed")
    }

    pub(super) fn get(&self, number: u32) -> &Flight {
        self.under_way[number as usize].as_ref().expect("a flight stays until it has landed")
    }

    /// Takes a flight that the kernel is done with.
    pub(super) fn remove(&mut self, number: u32) -> Flight {
        self.free.push(number);
        self.under_way[number as usize].take().expect("a flight lands once")
    }

    /// Queues a copy behind what waits, joined with it if both are small.
    pub(super) fn enqueue(&mut self, queue: &mut VecDeque<Unsent>, bytes: &[u8], n_told: u32) {
        if let Some(Unsent { bytes: Bytes::Copied(last), n_told: told, .. }) = queue.back_mut()
            && last.len() + bytes.len() <= JOINED
        {
            last.extend_from_slice(bytes);
            *told += n_told;
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        queue.push_back(Unsent { bytes: Bytes::Copied(copy), n_sent: 0, n_told });
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
