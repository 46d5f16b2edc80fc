//! Memory that the kernel writes to while this process runs on: never behind a reference until the kernel has given it back.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::Range,
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{IoUring, types::BufRingEntry};

use crate::{Error, Result};

/// The kernel wants a ring of buffers to begin at a page.
const PAGE: usize = 4096;

/// Zeroed bytes at a fixed place.
pub(super) struct Block {
    begin: NonNull<u8>,
    layout: Layout,
}

impl Block {
    pub(super) fn new(size: usize) -> Self {
        assert!(size > 0);
        let layout = Layout::from_size_align(size, PAGE).expect("a block is far smaller than the address space");
        // SAFETY: the size is not zero.
        let begin = unsafe { alloc_zeroed(layout) };
        let Some(begin) = NonNull::new(begin) else { handle_alloc_error(layout) };
        Self { begin, layout }
    }

    /// The place of a byte; where it points to is for the kernel to write.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        // SAFETY: the offset lies within the block.
        unsafe { self.begin.as_ptr().add(offset) }
    }

    pub(super) fn size(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the reactor has made sure that the kernel is done with it.
        unsafe { dealloc(self.begin.as_ptr(), self.layout) };
    }
}

/// Equal buffers from which the kernel picks one when bytes have arrived (a provided-buffer ring, Linux 5.19).
pub(super) struct Pool {
    ring: Block,
    buffers: Block,
    size: usize,
    ids: Range<u16>,
    /// The end of the ring as the kernel will see it; it counts beyond the ring's length.
    tail: u16,
}

impl Pool {
    /// Registers buffers with these numbers, a power of two of them, of `size` bytes as the group `group`.
    ///
    /// # Errors
    /// `io_uring_register(IORING_REGISTER_PBUF_RING)`: Linux before 5.19.
    pub(super) fn new(ring: &IoUring, group: u16, ids: Range<u16>, size: usize) -> Result<Self> {
        let count = ids.end - ids.start;
        assert!(count.is_power_of_two());
        let mut pool = Self {
            ring: Block::new(usize::from(count) * size_of::<BufRingEntry>()),
            buffers: Block::new(usize::from(count) * size),
            size,
            ids: ids.clone(),
            tail: 0,
        };
        ids.for_each(|id| pool.give(id));
        pool.publish();
        let place = pool.ring.at(0).expose_provenance() as u64;
        // SAFETY: the ring of entries lives until the reactor has ended every request; without one the kernel reads it no more.
        unsafe { ring.submitter().register_buf_ring_with_flags(place, count, group, 0) }
            .map_err(|error| Error::new("io_uring_register(IORING_REGISTER_PBUF_RING)", error))?;
        Ok(pool)
    }

    /// Gives a buffer back to the kernel, from the next [`Pool::publish`] on.
    pub(super) fn give(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.ids.end - self.ids.start - 1));
        let entry: *mut BufRingEntry = self.ring.at(slot * size_of::<BufRingEntry>()).cast();
        // SAFETY: the slot lies in the block, which is aligned to a page, and behind the tail that the kernel reads up to.
        let entry = unsafe { &mut *entry };
        entry.set_addr(self.buffers.at(usize::from(id - self.ids.start) * self.size).expose_provenance() as u64);
        entry.set_len(u32::try_from(self.size).expect("a buffer is far smaller"));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see what was given back.
    pub(super) fn publish(&mut self) {
        let first: *const BufRingEntry = self.ring.at(0).cast();
        // SAFETY: it is the first entry of the ring, and initialised.
        let tail = unsafe { BufRingEntry::tail(first) };
        // SAFETY: the tail lies in the ring's block, is aligned, and is only written here.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Bytes in a buffer that the kernel has filled and that was not given back since.
    pub(super) fn bytes(&self, id: u16, start: usize, length: usize) -> &[u8] {
        assert!(start + length <= self.size);
        let begin = self.buffers.at(usize::from(id - self.ids.start) * self.size + start);
        // SAFETY: the range lies within one buffer, which was zeroed at first and which the kernel has let go of.
        unsafe { slice::from_raw_parts(begin, length) }
    }
}
