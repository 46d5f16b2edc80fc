//! Frame memory: chunks that belong either to the program or to the kernel, never to both.

use std::{
    num::NonZeroUsize,
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    Result,
    mapping::{Mapping, Source},
};

/// The length of a chunk: a page, the maximum that the kernel accepts without multi-buffer frames.
pub const CHUNK: usize = 4096;
/// The space that the kernel leaves free before a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: usize = 256;

/// A chunk that the program may write to until it passes the chunk to the kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    index: u32,
    /// The id of the memory that it is part of.
    umem: u64,
}

impl Chunk {
    /// Its number among the chunks of its socket.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.index as usize
    }
}

/// The number of memories created so far.
static N_UMEMS: AtomicU64 = AtomicU64::new(0);

/// All chunks of one socket.
#[derive(Debug)]
pub(super) struct Umem {
    /// A unique id, so that a chunk of one memory is never taken for one of another.
    id: u64,
    memory: Mapping,
    n_chunks: u32,
    free: Vec<Chunk>,
}

impl Umem {
    /// Allocates `n_chunks` chunks, all owned by the program.
    pub(super) fn of(n_chunks: u32) -> Result<Self> {
        let size = NonZeroUsize::new(n_chunks as usize * CHUNK).expect("a socket has chunks");
        let memory = Mapping::of(Source::Whole, size)?;
        let id = N_UMEMS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, memory, n_chunks, free: (0..n_chunks).map(|index| Chunk { index, umem: id }).collect() })
    }

    /// The start address and the length in bytes, in the kernel's format.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.memory.at(0).as_ptr().expose_provenance() as u64, u64::from(self.n_chunks) * CHUNK as u64)
    }

    /// The number of chunks owned by the kernel.
    pub(super) fn n_lent(&self) -> usize {
        self.n_chunks as usize - self.free.len()
    }

    pub(super) fn take(&mut self) -> Option<Chunk> {
        self.free.pop()
    }

    /// Returns the chunk that contains an address to the program.
    pub(super) fn give_back(&mut self, address: u64) {
        self.free.push(self.chunk_of(address));
    }

    fn chunk_of(&self, address: u64) -> Chunk {
        let index = u32::try_from(address / CHUNK as u64).ok().filter(|index| *index < self.n_chunks);
        Chunk { index: index.expect("the kernel gives back what it was given"), umem: self.id }
    }

    /// Passes a chunk to the kernel; returns its offset from the beginning of the memory.
    #[expect(clippy::needless_pass_by_value, reason = "what was given away cannot be written to any more")]
    pub(super) fn lend(&self, chunk: Chunk) -> u64 {
        self.require_own(&chunk);
        u64::from(chunk.index) * CHUNK as u64
    }

    /// Panics for a chunk of another socket, because the kernel may own the chunk with that number here.
    fn require_own(&self, chunk: &Chunk) {
        assert!(chunk.umem == self.id, "a chunk is given to the socket that it was taken from");
    }

    /// The bytes of a chunk owned by the program.
    pub(super) fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        self.require_own(chunk);
        let begin = self.memory.at(chunk.index as usize * CHUNK);
        // SAFETY: the chunk is inside the mapping, which was zeroed initially. The holder of a `Chunk` owns it exclusively, since it comes
        // from this memory's free list; `&mut self` prevents two slices at the same time.
        unsafe { slice::from_raw_parts_mut(begin.as_ptr(), CHUNK) }
    }

    /// The bytes of a frame that the kernel has just passed to the program.
    pub(super) fn received(&self, address: u64, length: usize) -> &[u8] {
        let chunk = self.chunk_of(address);
        let offset = usize::try_from(address).expect("an address within the memory fits");
        assert!(offset + length <= (chunk.index as usize + 1) * CHUNK, "a frame of {length} bytes leaves its chunk");
        // SAFETY: the range is inside one chunk, as checked above, and the kernel has released it.
        unsafe { slice::from_raw_parts(self.memory.at(offset).as_ptr(), length) }
    }

    /// The bytes of the chunk before a frame that the kernel has just passed to the program.
    pub(super) fn ahead(&self, address: u64) -> &[u8] {
        let begin = address - address % CHUNK as u64;
        self.received(begin, usize::try_from(address - begin).expect("a chunk is short"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_comes_back_is_the_one_that_was_given() {
        let mut umem = Umem::of(4).unwrap();
        let chunk = umem.take().unwrap();
        umem.bytes_mut(&chunk).fill(7);
        let address = umem.lend(chunk);
        assert_eq!((address, umem.n_lent()), (3 * CHUNK as u64, 1));
        assert_eq!(umem.received(address + 256, 60), [7; 60]);
        assert_eq!((umem.ahead(address + 256), umem.ahead(address)), (&[7; 256][..], &[][..]));
        // The kernel returns an address inside the chunk.
        umem.give_back(address + 256);
        assert_eq!((umem.n_lent(), umem.take().map(|chunk| chunk.number())), (0, Some(3)));
    }

    #[test]
    #[should_panic(expected = "the socket that it was taken from")]
    fn a_chunk_of_another_socket_is_a_bug() {
        let (mut one, mut other) = (Umem::of(1).unwrap(), Umem::of(1).unwrap());
        let chunk = one.take().unwrap();
        other.bytes_mut(&chunk).fill(7);
    }

    #[test]
    #[should_panic(expected = "leaves its chunk")]
    fn a_frame_that_would_leave_its_chunk_is_a_bug() {
        let _ = Umem::of(2).unwrap().received(100, CHUNK);
    }
}
