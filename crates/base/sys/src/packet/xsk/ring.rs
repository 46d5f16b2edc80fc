//! Rings that the kernel and the program write to from one end each.

use std::{
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    Result,
    mapping::{Mapping, Source},
};

/// A ring of entries of one kind: `u64` addresses, or descriptors of frames.
#[derive(Debug)]
pub(super) struct Ring<T> {
    // Keeps the places below in existence.
    _memory: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    length: u32,
    /// Our own end, which runs ahead of what the kernel was told.
    own: u32,
    /// The kernel's end when it was last looked at.
    theirs: u32,
}

// SAFETY: the pointers are into memory that the ring holds, and all access is through `&mut self`.
unsafe impl<T: Send> Send for Ring<T> {}

/// The kernel wants to be woken (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

impl<T: Copy> Ring<T> {
    /// Maps a ring of `length` entries, which the kernel has already made.
    ///
    /// `T` must be the kind of entry that the ring holds, and any bytes must be a value of it.
    pub(super) fn map(source: Source, places: libc::xdp_ring_offset, length: u32) -> Result<Self> {
        assert!(length.is_power_of_two(), "the kernel makes rings of powers of two only");
        let offset = |place: u64| usize::try_from(place).expect("a ring is far smaller than the address space");
        let size = offset(places.desc) + length as usize * size_of::<T>();
        let memory = Mapping::of(source, NonZeroUsize::new(size).expect("a ring has entries"))?;
        let word = |place: u64| memory.at(offset(place)).cast::<AtomicU32>();
        let (producer, consumer, flags) = (word(places.producer), word(places.consumer), word(places.flags));
        let entries = memory.at(offset(places.desc)).cast();
        Ok(Self { _memory: memory, producer, consumer, flags, entries, length, own: 0, theirs: 0 })
    }

    /// How many entries were ever written, by whichever side writes; wraps around.
    fn written(&self) -> &AtomicU32 {
        // SAFETY: the place lies in the mapping, is aligned as the kernel laid it out, and both sides access it atomically.
        unsafe { self.producer.as_ref() }
    }

    /// How many entries were ever read, by whichever side reads; wraps around.
    fn read(&self) -> &AtomicU32 {
        // SAFETY: as for what was written.
        unsafe { self.consumer.as_ref() }
    }

    /// The place of an entry, by a number that wraps around.
    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: masked with the length of the ring, the entry lies within the mapping.
        unsafe { self.entries.add((number & (self.length - 1)) as usize) }
    }

    /// Writes an entry, unless the ring is full; the kernel sees it after [`Self::publish`].
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.theirs) == self.length {
            self.theirs = self.read().load(Ordering::Acquire);
            if self.own.wrapping_sub(self.theirs) == self.length {
                return false;
            }
        }
        let place = self.entry(self.own);
        // SAFETY: the entry lies within the ring, and the kernel, which has read it before, reads it again only once it is published.
        unsafe { place.write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// Lets the kernel see what was pushed.
    pub(super) fn publish(&mut self) {
        self.written().store(self.own, Ordering::Release);
    }

    /// Takes the next entry that the kernel has written; it may write there again after [`Self::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.theirs {
            self.theirs = self.written().load(Ordering::Acquire);
            if self.own == self.theirs {
                return None;
            }
        }
        let place = self.entry(self.own);
        // SAFETY: the entry lies within the ring, the kernel has written it before it moved its end, and any bytes are a value.
        let entry = unsafe { place.read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Lets the kernel write to what was popped.
    pub(super) fn release(&mut self) {
        self.read().store(self.own, Ordering::Release);
    }

    /// Whether the kernel sleeps until it is called.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: the place lies in the mapping, is aligned, and both sides access it atomically.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in memory of its own, in which the test is the kernel.
    fn ring() -> Ring<u64> {
        Ring::map(Source::Whole, libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 }, 4).unwrap()
    }

    #[test]
    fn a_full_ring_takes_nothing_until_the_kernel_has_read() {
        let mut ring = ring();
        assert!((0..4).all(|entry| ring.push(entry)) && !ring.push(4));
        assert_eq!(ring.written().load(Ordering::Relaxed), 0, "nothing is published yet");
        ring.publish();
        assert_eq!(ring.written().load(Ordering::Relaxed), 4);
        ring.read().store(2, Ordering::Relaxed);
        assert!(ring.push(4) && ring.push(5) && !ring.push(6));
    }

    #[test]
    fn what_the_kernel_wrote_comes_out_once_and_in_order_around_the_end() {
        let mut ring = ring();
        for round in 0..3_u64 {
            let first = u32::try_from(round).unwrap() * 3;
            for number in 0..3 {
                // SAFETY: the entry lies within the ring, and nobody else accesses it.
                unsafe { ring.entry(first + number).write(u64::from(first + number)) };
            }
            ring.written().store(first + 3, Ordering::Relaxed);
            assert_eq!(std::iter::from_fn(|| ring.pop()).collect::<Vec<_>>(), [0, 1, 2].map(|n| round * 3 + n));
            ring.release();
            assert_eq!(ring.read().load(Ordering::Relaxed), first + 3);
        }
        assert!(!ring.needs_wakeup());
    }
}
