//! Rings with the kernel at one end and the program at the other.

use std::{
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    Result,
    mapping::{Mapping, Source},
};

/// A ring of entries of one type: `u64` addresses or frame descriptors.
#[derive(Debug)]
pub(super) struct Ring<T> {
    // Keeps the pointers below valid.
    _memory: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    length: u32,
    /// Our own end, which runs ahead of the published value.
    own: u32,
    /// The kernel's end when it was last read.
    theirs: u32,
}

// SAFETY: the pointers are into memory that the ring owns, and all access is through `&mut self`.
unsafe impl<T: Send> Send for Ring<T> {}

/// The kernel needs a wakeup (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

impl<T: Copy> Ring<T> {
    /// Maps a ring of `length` entries that the kernel has already created.
    ///
    /// `T` must be the entry type of the ring, and any bytes must be a valid value of it.
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

    /// The total number of entries written by the producer; wraps around.
    fn written(&self) -> &AtomicU32 {
        // SAFETY: the pointer is inside the mapping, is aligned by the kernel's layout, and both sides access it atomically.
        unsafe { self.producer.as_ref() }
    }

    /// The total number of entries read by the consumer; wraps around.
    fn read(&self) -> &AtomicU32 {
        // SAFETY: as in `written`.
        unsafe { self.consumer.as_ref() }
    }

    /// Returns the slot of an entry, by a number that wraps around.
    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: masked with the length of the ring, the entry is inside the mapping.
        unsafe { self.entries.add((number & (self.length - 1)) as usize) }
    }

    /// Writes an entry unless the ring is full; the kernel sees it after [`Self::publish`].
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.theirs) == self.length {
            self.theirs = self.read().load(Ordering::Acquire);
            if self.own.wrapping_sub(self.theirs) == self.length {
                return false;
            }
        }
        let place = self.entry(self.own);
        // SAFETY: the entry is inside the ring; the kernel has already read the old value and reads the slot again only after it is
        // published.
        unsafe { place.write(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// Publishes pushed entries to the kernel.
    pub(super) fn publish(&mut self) {
        self.written().store(self.own, Ordering::Release);
    }

    /// Returns the next entry written by the kernel, which may reuse the slot after [`Self::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.own == self.theirs {
            self.theirs = self.written().load(Ordering::Acquire);
            if self.own == self.theirs {
                return None;
            }
        }
        let place = self.entry(self.own);
        // SAFETY: the entry is inside the ring, the kernel wrote it before it moved its end, and any bytes are a valid value.
        let entry = unsafe { place.read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Returns popped slots to the kernel.
    pub(super) fn release(&mut self) {
        self.read().store(self.own, Ordering::Release);
    }

    /// Returns whether the kernel sleeps until it is woken by a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: the pointer is inside the mapping, is aligned, and both sides access it atomically.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in private memory, in which the test plays the kernel.
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
                // SAFETY: the entry is inside the ring, and nobody else accesses it.
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
