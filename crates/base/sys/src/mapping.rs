//! Memory by whole pages, which the kernel may write to while the program runs on.

use std::{num::NonZeroUsize, ptr, ptr::NonNull};

use crate::{Error, Result};

/// Pages that were mapped, until this is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: NonNull<u8>,
    size: usize,
}

/// What is mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// A part of what a descriptor stands for, named by its offset.
    Shared(libc::c_int, libc::off_t),
    /// Zeroed memory of its own, all of it there at once.
    Whole,
    /// Zeroed memory of its own, of which a page costs nothing until it is used.
    Sparse,
}

impl Mapping {
    /// Maps that many bytes, for reading and writing.
    pub(crate) fn of(source: Source, size: NonZeroUsize) -> Result<Self> {
        let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (flags, fd, offset) = match source {
            Source::Shared(fd, offset) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset),
            Source::Whole => (own | libc::MAP_POPULATE, -1, 0),
            Source::Sparse => (own, -1, 0),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses touches no memory that exists.
        let begin = unsafe { libc::mmap(ptr::null_mut(), size.get(), protection, flags, fd, offset) };
        if begin == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        let begin = NonNull::new(begin.cast()).expect("the kernel maps nothing at address zero by itself");
        Ok(Self { begin, size: size.get() })
    }

    /// How many bytes it has.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// The place of a byte within it.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.size, "{offset} lies behind a mapping of {} bytes", self.size);
        // SAFETY: the offset lies within the mapping.
        unsafe { self.begin.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and whoever has pointers into it holds the mapping with them.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.size) };
    }
}

// SAFETY: a mapping is memory, which no thread owns; all access is through `&self` or `&mut self` of who holds it.
unsafe impl Send for Mapping {}
