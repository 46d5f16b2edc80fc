//! Memory that the kernel writes to while this process runs: never referenced until the kernel has returned it.

use std::{
    num::NonZeroUsize,
    ops::Range,
    slice,
    sync::atomic::{AtomicU16, Ordering},
};

use io_uring::{IoUring, types::BufRingEntry};

use crate::{
    Error, Result,
    mapping::{Mapping, Source},
};

/// Zeroed bytes at a fixed, page-aligned address, as the kernel requires for a ring of buffers.
///
/// A run of a few requests uses little of this memory, and each worker has its own, so pages are allocated on first use.
pub(super) fn block(size: usize) -> Result<Mapping> {
    Mapping::of(Source::Sparse, NonZeroUsize::new(size).expect("a block has bytes"))
}

/// Equal buffers from which the kernel picks one when bytes have arrived (a provided-buffer ring, Linux 5.19).
pub(super) struct BufferPool {
    ring: Mapping,
    buffers: Mapping,
    size: usize,
    ids: Range<u16>,
    /// The end of the ring as the kernel will see it; it counts beyond the ring's length.
    tail: u16,
}

impl BufferPool {
    /// Registers buffers of `size` bytes with these ids, a power of two of them, as the group `group`.
    ///
    /// # Errors
    /// `mmap` without memory; `io_uring_register(IORING_REGISTER_PBUF_RING)`: Linux before 5.19.
    pub(super) fn new(ring: &IoUring, group: u16, ids: Range<u16>, size: usize) -> Result<Self> {
        let count = ids.end - ids.start;
        assert!(count.is_power_of_two());
        let mut pool = Self {
            ring: block(usize::from(count) * size_of::<BufRingEntry>())?,
            buffers: block(usize::from(count) * size)?,
            size,
            ids: ids.clone(),
            tail: 0,
        };
        ids.for_each(|id| pool.give(id));
        pool.publish();
        let place = pool.ring.at(0).as_ptr().expose_provenance() as u64;
        // SAFETY: the ring of entries lives until the reactor has ended every request; after that the kernel does not read it.
        unsafe { ring.submitter().register_buf_ring_with_flags(place, count, group, 0) }
            .map_err(|error| Error::new("io_uring_register(IORING_REGISTER_PBUF_RING)", error))?;
        Ok(pool)
    }

    /// Returns a buffer to the kernel at the next [`BufferPool::publish`].
    pub(super) fn give(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.ids.end - self.ids.start - 1));
        let entry: *mut BufRingEntry = self.ring.at(slot * size_of::<BufRingEntry>()).as_ptr().cast();
        // SAFETY: the slot is inside the page-aligned block, and beyond the tail up to which the kernel reads.
        let entry = unsafe { &mut *entry };
        entry.set_addr(self.buffers.at(usize::from(id - self.ids.start) * self.size).as_ptr().expose_provenance() as u64);
        entry.set_len(u32::try_from(self.size).expect("a buffer is far smaller"));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the returned buffers to the kernel.
    pub(super) fn publish(&mut self) {
        let first: *const BufRingEntry = self.ring.at(0).as_ptr().cast();
        // SAFETY: it is the first entry of the ring, and initialized.
        let tail = unsafe { BufRingEntry::tail(first) };
        // SAFETY: the tail is inside the ring's block, is aligned, and is only written here.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// The bytes in a buffer that the kernel has filled and that has not been returned since.
    pub(super) fn bytes(&self, id: u16, start: usize, length: usize) -> &[u8] {
        assert!(start + length <= self.size);
        let begin = self.buffers.at(usize::from(id - self.ids.start) * self.size + start);
        // SAFETY: the range is inside one buffer, which was zeroed initially and which the kernel has released.
        unsafe { slice::from_raw_parts(begin.as_ptr(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_uses_costs_no_pages() {
        // The minor page faults of this thread: field 10 of proc_pid_stat(5).
        let n_faults = || -> u64 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields = stat.rsplit(')').next().unwrap();
            fields.split_whitespace().nth(7).unwrap().parse().unwrap()
        };
        let before = n_faults();
        let block = block(1 << 20).unwrap();
        let n_made = n_faults() - before;
        assert!(n_made < 64, "{n_made} of 256 pages were touched");
        // SAFETY: the address is inside the block, which nothing else refers to.
        assert_eq!(unsafe { block.at(block.size() - 1).read() }, 0);
    }
}
