//! The pool of fragments that wait: lists of packets in buffers that are used again.

use super::released::Released;

/// The end of a list.
const END: u32 = u32::MAX;

/// The packets that wait for one datagram, in the order in which they came.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingList {
    first: u32,
    last: u32,
}

impl WaitingList {
    pub(super) const EMPTY: Self = Self { first: END, last: END };
}

#[derive(Debug)]
struct StoredPacket {
    bytes: Vec<u8>,
    next: u32,
}

/// Packets of all lists.
#[derive(Debug)]
pub(super) struct PacketPool {
    packets: Vec<StoredPacket>,
    /// Buffers that no list has.
    free: Vec<u32>,
    n_max: u32,
    bytes_max: usize,
}

fn index(place: u32) -> usize {
    usize::try_from(place).expect("addresses have at least 32 bits")
}

impl PacketPool {
    pub(super) fn new(n_max: u32, bytes_max: u32) -> Self {
        Self { packets: Vec::new(), free: Vec::new(), n_max, bytes_max: index(bytes_max) }
    }

    /// Adds a packet to a list; returns false if it is too long or there is no buffer left.
    pub(super) fn store(&mut self, list: &mut WaitingList, bytes: &[u8]) -> bool {
        let n = u32::try_from(self.packets.len()).unwrap_or(u32::MAX);
        if bytes.len() > self.bytes_max || self.free.is_empty() && n >= self.n_max {
            return false;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.packets.push(StoredPacket { bytes: Vec::new(), next: END });
            n
        });
        let packet = &mut self.packets[index(place)];
        bytes.clone_into(&mut packet.bytes);
        packet.next = END;
        if list.first == END {
            list.first = place;
        } else {
            self.packets[index(list.last)].next = place;
        }
        list.last = place;
        true
    }

    /// Gives a list's buffers back, after its packets were added to `released`, if there is one. Returns the number of packets.
    pub(super) fn take(&mut self, list: &mut WaitingList, mut released: Option<&mut Released>) -> u64 {
        let (mut place, mut n) = (list.first, 0);
        while place != END {
            let packet = &self.packets[index(place)];
            if let Some(released) = released.as_deref_mut() {
                released.push(&packet.bytes);
            }
            self.free.push(place);
            place = packet.next;
            n += 1;
        }
        *list = WaitingList::EMPTY;
        n
    }

    /// The number of packets in all lists.
    pub(super) fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}
