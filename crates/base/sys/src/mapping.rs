//! Page-aligned memory that the kernel may write to while the program runs.

use std::{num::NonZeroUsize, ptr, ptr::NonNull};

use crate::{Error, Result};

/// Mapped pages, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    begin: NonNull<u8>,
    size: usize,
}

/// The source of the mapped memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// A part of a descriptor's memory, given by its offset.
    Shared(libc::c_int, libc::off_t),
    /// Private zeroed memory, fully populated at once.
    Whole,
    /// Private zeroed memory whose pages are allocated on first use.
    Sparse,
}

impl Mapping {
    /// Maps `size` bytes for reading and writing.
    pub(crate) fn of(source: Source, size: NonZeroUsize) -> Result<Self> {
        let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (flags, fd, offset) = match source {
            Source::Shared(fd, offset) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset),
            Source::Whole => (own | libc::MAP_POPULATE, -1, 0),
            Source::Sparse => (own, -1, 0),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let begin = unsafe { libc::mmap(ptr::null_mut(), size.get(), protection, flags, fd, offset) };
        if begin == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        let begin = NonNull::new(begin.cast()).expect("the kernel maps nothing at address zero by itself");
        Ok(Self { begin, size: size.get() })
    }

    /// The size in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Returns a pointer to the byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.size, "{offset} lies behind a mapping of {} bytes", self.size);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.begin.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and every holder of a pointer into it also holds the mapping.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.size) };
    }
}

// SAFETY: a mapping is memory that no thread owns; all access goes through its holder's `&self` or `&mut self`.
unsafe impl Send for Mapping {}
