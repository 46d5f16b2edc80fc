//! One part of the table, without a lock: slots, chains of buckets, and the pools.

use fathom_model::units::Nanos;

use super::{
    Completion, FirstFragment, FragmentCounters, FragmentSettings, FragmentSettingsError, LaterFragment, Released,
    pieces::Pieces,
    stored::{PacketPool, WaitingList},
};
use crate::{
    classify::{DatagramKey, Fragment},
    hash::Slots,
};

/// The end of a chain.
const END: u32 = u32::MAX;

/// What is known of a datagram.
#[derive(Debug, Clone, Copy)]
enum State<V> {
    /// Its first fragment has not come; others wait.
    Waiting,
    /// Its first fragment was decided.
    Known(V),
    /// One of its fragments was lost, so the others are of no use.
    Incomplete,
}

/// What a search reads of every entry of a chain; a table of some thousand of them stays in the cache.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// When the last fragment of its datagram came.
    seen: Nanos,
    /// The next entry of the chain of its slot.
    next: u32,
    /// Whether the entry is in use, whether fragments wait in it, and bits of the hash.
    tag: u32,
}

/// The entry is in use.
const USED: u32 = 1;
/// Fragments wait in the entry.
const WAITING: u32 = 2;

impl Link {
    const fn is_free(self) -> bool {
        self.tag & USED == 0
    }

    /// Whether it may be the entry of a hash.
    const fn may_be(self, tag: u32) -> bool {
        self.tag & !WAITING == tag
    }
}

/// The tag of an entry in which nothing waits.
fn tag(hash: u64) -> u32 {
    let upper = u32::try_from(hash >> 32).expect("half of the bits are left");
    upper & !WAITING | USED
}

/// What is read of the entry that was found.
#[derive(Debug, Clone, Copy)]
struct Entry<V> {
    key: DatagramKey,
    state: State<V>,
    waiting: WaitingList,
}

/// A part of the table for one thread at a time.
#[derive(Debug)]
pub struct FragmentShard<V> {
    settings: FragmentSettings,
    slots: Slots,
    /// Those of the slots, then those of the buckets.
    links: Vec<Link>,
    /// Beside the links.
    entries: Vec<Entry<V>>,
    /// The forwarded parts of the datagram of each entry; empty unless complete datagrams are removed.
    pieces: Vec<Pieces>,
    free_buckets: Vec<u32>,
    packets: PacketPool,
    /// The slot that is searched next for old entries.
    hand: u32,
    counters: FragmentCounters,
}

fn index(place: u32) -> usize {
    usize::try_from(place).expect("addresses have at least 32 bits")
}

impl<V: Copy> FragmentShard<V> {
    /// Makes an empty part with all of the pools.
    ///
    /// # Errors
    /// If a size is out of range.
    pub fn new(settings: FragmentSettings) -> Result<Self, FragmentSettingsError> {
        settings.check()?;
        let address = std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        let key = DatagramKey { source: address, destination: address, id: 0, protocol: 0 };
        let entry = Entry { key, state: State::Incomplete, waiting: WaitingList::EMPTY };
        let n_entries = settings.n_slots + settings.n_buckets;
        let n_pieces = if settings.completion == Completion::Remove { index(n_entries) } else { 0 };
        Ok(Self {
            links: vec![Link { seen: Nanos::ZERO, next: END, tag: 0 }; index(n_entries)],
            entries: vec![entry; index(n_entries)],
            pieces: vec![Pieces::default(); n_pieces],
            free_buckets: (settings.n_slots..n_entries).rev().collect(),
            packets: PacketPool::new(settings.n_stored, settings.stored_bytes_max),
            hand: 0,
            counters: FragmentCounters::default(),
            slots: Slots::new(settings.n_slots),
            settings,
        })
    }

    /// Writes what was decided for a first fragment, given with the hash of its datagram.
    #[inline]
    pub fn first(
        &mut self,
        (fragment, hash): (&Fragment, u64),
        value: V,
        now: Nanos,
        released: &mut Released,
    ) -> FirstFragment {
        let slot = self.slot(hash);
        let Some(at) = self.find_or_insert(slot, (fragment.datagram, hash), now) else {
            return FirstFragment::TableFull;
        };
        let entry = &mut self.entries[index(at)];
        if matches!(entry.state, State::Incomplete) {
            return FirstFragment::Incomplete;
        }
        entry.state = State::Known(value);
        let link = &mut self.links[index(at)];
        link.seen = now;
        if link.tag & WAITING != 0 {
            link.tag &= !WAITING;
            self.packets.take(&mut entry.waiting, Some(released));
        }
        self.forwarded(at, slot, fragment);
        FirstFragment::Known
    }

    /// Looks up a later fragment, given with the hash of its datagram. Its bytes are kept if it has to wait; one whose bytes are not whole
    /// cannot.
    #[inline]
    pub fn later(&mut self, (fragment, hash): (&Fragment, u64), bytes: Option<&[u8]>, now: Nanos) -> LaterFragment<V> {
        let slot = self.slot(hash);
        self.counters.n_lookups += 1;
        let Some(at) = self.find_or_insert(slot, (fragment.datagram, hash), now) else {
            return LaterFragment::TableFull;
        };
        if matches!(self.entries[index(at)].state, State::Waiting) {
            // Each fragment that waits makes room for another: what waited in vain may be in a slot that no datagram comes to for long.
            self.sweep(now, |_| false);
        }
        let entry = &mut self.entries[index(at)];
        match entry.state {
            State::Known(value) => {
                self.links[index(at)].seen = now;
                self.forwarded(at, slot, fragment);
                LaterFragment::Known(value)
            }
            State::Incomplete => LaterFragment::Incomplete,
            State::Waiting if bytes.is_some_and(|bytes| self.packets.store(&mut entry.waiting, bytes)) => {
                let link = &mut self.links[index(at)];
                link.seen = now;
                link.tag |= WAITING;
                self.counters.n_stored_total += 1;
                LaterFragment::Held
            }
            State::Waiting => {
                self.counters.n_discarded += self.packets.take(&mut entry.waiting, None);
                entry.state = State::Incomplete;
                self.links[index(at)].tag &= !WAITING;
                LaterFragment::StoreFull
            }
        }
    }

    /// What happened, and what is in the table.
    pub fn counters(&self) -> FragmentCounters {
        let n_stored = u64::try_from(self.packets.len()).unwrap_or(u64::MAX);
        FragmentCounters { n_stored, ..self.counters }
    }

    /// The number of entries that are too old, but still in the table.
    pub fn n_stale(&self, now: Nanos) -> u64 {
        let is_stale = |link: &&Link| !link.is_free() && self.is_old(**link, now);
        u64::try_from(self.links.iter().filter(is_stale).count()).unwrap_or(u64::MAX)
    }

    fn slot(&self, hash: u64) -> u32 {
        self.slots.of(hash)
    }

    /// The clocks of two threads may differ: an entry from the future is not old.
    fn is_old(&self, link: Link, now: Nanos) -> bool {
        now.since(link.seen) > self.settings.ttl
    }

    /// Returns the entry of a datagram, or a new one, and removes the old entries of its slot; `None` if the table is full.
    #[inline]
    fn find_or_insert(&mut self, slot: u32, (key, hash): (DatagramKey, u64), now: Nanos) -> Option<u32> {
        let link = self.links[index(slot)];
        // Most slots have no chain, and an entry that is free or old.
        if link.next == END && (link.is_free() || self.is_old(link, now)) {
            if !link.is_free() {
                self.counters.n_expired += 1;
                self.remove(slot, slot);
            }
            self.counters.n_inserts += 1;
            self.fill(slot, (key, hash), now);
            return Some(slot);
        }
        match self.find(slot, (&key, hash), now) {
            Some(at) => Some(at),
            None => self.insert(slot, (key, hash), now),
        }
    }

    /// Returns the entry of a datagram, and removes the old entries of its slot.
    fn find(&mut self, slot: u32, (key, hash): (&DatagramKey, u64), now: Nanos) -> Option<u32> {
        let tag = tag(hash);
        let mut found = None;
        let (mut before, mut at) = (slot, slot);
        while at != END {
            let link = self.links[index(at)];
            if !link.is_free() && self.is_old(link, now) {
                self.counters.n_expired += 1;
                self.remove(at, before);
            } else if link.may_be(tag) && self.entries[index(at)].key == *key {
                found = Some(at);
            }
            // A bucket that was removed has left the chain; the entry of a slot has not.
            if at == slot || self.links[index(before)].next == at {
                before = at;
            }
            at = link.next;
        }
        found
    }

    /// Frees an entry. `before` is the one before it in its chain; a slot's own entry stays where it is.
    fn remove(&mut self, at: u32, before: u32) {
        let link = &mut self.links[index(at)];
        let next = link.next;
        if link.tag & WAITING != 0 {
            self.counters.n_discarded += self.packets.take(&mut self.entries[index(at)].waiting, None);
        }
        link.tag = 0;
        self.counters.n_entries -= 1;
        if at >= self.settings.n_slots {
            link.next = END;
            self.links[index(before)].next = next;
            self.free_buckets.push(at);
            self.counters.n_buckets -= 1;
        }
    }

    /// Adds an entry, in the slot or in a bucket.
    fn insert(&mut self, slot: u32, (key, hash): (DatagramKey, u64), now: Nanos) -> Option<u32> {
        self.counters.n_inserts += 1;
        let mut at = slot;
        if !self.links[index(slot)].is_free() {
            self.counters.n_collisions += 1;
            let Some(bucket) = self.free_bucket(now) else {
                self.counters.n_rejected += 1;
                return None;
            };
            self.counters.n_buckets += 1;
            self.counters.n_buckets_peak = self.counters.n_buckets_peak.max(self.counters.n_buckets);
            self.links[index(bucket)].next = self.links[index(slot)].next;
            self.links[index(slot)].next = bucket;
            at = bucket;
        }
        self.fill(at, (key, hash), now);
        Some(at)
    }

    /// Fills a free entry.
    #[inline]
    fn fill(&mut self, at: u32, (key, hash): (DatagramKey, u64), now: Nanos) {
        self.counters.n_entries += 1;
        self.counters.n_entries_peak = self.counters.n_entries_peak.max(self.counters.n_entries);
        let link = &mut self.links[index(at)];
        *link = Link { seen: now, next: link.next, tag: tag(hash) };
        self.entries[index(at)] = Entry { key, state: State::Waiting, waiting: WaitingList::EMPTY };
        if let Some(pieces) = self.pieces.get_mut(index(at)) {
            *pieces = Pieces::default();
        }
    }

    /// Takes a bucket; if none is left, the next slots are searched for old entries.
    fn free_bucket(&mut self, now: Nanos) -> Option<u32> {
        self.sweep(now, |shard| !shard.free_buckets.is_empty());
        self.free_buckets.pop()
    }

    /// Searches the next slots for old entries until there is enough.
    fn sweep(&mut self, now: Nanos, is_enough: impl Fn(&Self) -> bool) {
        for _ in 0..self.settings.n_swept {
            if is_enough(self) {
                break;
            }
            let slot = self.hand;
            self.hand = if slot + 1 == self.settings.n_slots { 0 } else { slot + 1 };
            let key = self.entries[index(slot)].key;
            self.find(slot, (&key, 0), now);
        }
    }

    /// Notes that a fragment was forwarded, and removes the entry if that was the last one of its datagram.
    fn forwarded(&mut self, at: u32, slot: u32, fragment: &Fragment) {
        let Some(pieces) = self.pieces.get_mut(index(at)) else { return };
        let begin = u32::from(fragment.offset);
        if !pieces.add((begin, begin + u32::from(fragment.length)), fragment.is_last) {
            return;
        }
        let mut before = slot;
        while before != at && self.links[index(before)].next != at {
            before = self.links[index(before)].next;
        }
        self.counters.n_completed += 1;
        self.remove(at, before);
    }
}

#[cfg(test)]
impl<V: Copy> FragmentShard<V> {
    /// Every bucket is free or in exactly one chain, and so is every stored packet.
    pub(super) fn check_pools(&self) {
        let mut n_buckets = 0;
        let mut n_used = 0;
        for slot in 0..self.settings.n_slots {
            let mut at = slot;
            while at != END {
                let link = self.links[index(at)];
                let is_free = link.is_free();
                assert!(at == slot || !is_free, "a free bucket is in the chain of slot {slot}");
                n_buckets += u64::from(at != slot);
                n_used += u64::from(!is_free);
                assert!(n_buckets <= u64::from(self.settings.n_buckets), "the chain of slot {slot} has no end");
                at = link.next;
            }
        }
        assert_eq!(n_buckets, self.counters.n_buckets);
        assert_eq!(n_used, self.counters.n_entries);
        let n_free = u64::try_from(self.free_buckets.len()).expect("it is the length of a list");
        assert_eq!(n_buckets + n_free, u64::from(self.settings.n_buckets));
    }
}
