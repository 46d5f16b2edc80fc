//! Memory that the kernel writes to while this process runs on: never behind a reference until the kernel has given it back.

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

/// Zeroed bytes at a fixed place, from the beginning of a page on, as the kernel wants a ring of buffers.
///
/// A run of a few requests uses little of them, and each worker has its own, so pages come when they are used.
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
    /// Registers buffers with these numbers, a power of two of them, of `size` bytes as the group `group`.
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
        // SAFETY: the ring of entries lives until the reactor has ended every request; without one the kernel reads it no more.
        unsafe { ring.submitter().register_buf_ring_with_flags(place, count, group, 0) }
            .map_err(|error| Error::new("io_uring_register(IORING_REGISTER_PBUF_RING)", error))?;
        Ok(pool)
    }

    /// Gives a buffer back to the kernel, from the next [`BufferPool::publish`] on.
    pub(super) fn give(&mut self, id: u16) {
        let slot = usize::from(self.tail & (self.ids.end - self.ids.start - 1));
        let entry: *mut BufRingEntry = self.ring.at(slot * size_of::<BufRingEntry>()).as_ptr().cast();
        // SAFETY: the slot lies in the block, which is aligned to a page, and behind the tail that the kernel reads up to.
        let entry = unsafe { &mut *entry };
        entry.set_addr(self.buffers.at(usize::from(id - self.ids.start) * self.size).as_ptr().expose_provenance() as u64);
        entry.set_len(u32::try_from(self.size).expect("a buffer is far smaller"));
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Lets the kernel see what was given back.
    pub(super) fn publish(&mut self) {
        let first: *const BufRingEntry = self.ring.at(0).as_ptr().cast();
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
        unsafe { slice::from_raw_parts(begin.as_ptr(), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_nobody_uses_costs_no_pages() {
        // The faults that this thread was served without the disk: field 10 of proc_pid_stat(5).
        let n_faults = || -> u64 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields = stat.rsplit(')').next().unwrap();
            fields.split_whitespace().nth(7).unwrap().parse().unwrap()
        };
        let before = n_faults();
        let block = block(1 << 20).unwrap();
        let n_made = n_faults() - before;
        assert!(n_made < 64, "{n_made} of 256 pages were touched");
        // SAFETY: the place lies in the block, which nothing else refers to.
        assert_eq!(unsafe { block.at(block.size() - 1).read() }, 0);
    }
}
