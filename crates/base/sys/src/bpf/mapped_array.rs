//! Arrays whose rows user space reads and writes in place.

use std::{
    num::NonZeroUsize,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::AtomicU64,
};

use super::syscall::{MapCreate, bpf_fd, object_name, size};
use crate::{
    Error, Result,
    mapping::{Mapping, Source},
};

const TYPE_ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`, Linux 5.5.
const MAPPABLE: u32 = 1 << 10;
const PAGE: usize = 4096;

/// Rows of `WORDS` numbers in memory that programs and this process share.
///
/// Rows begin on a page, one behind the other, so a row of 8 words is a cache line. Nothing is ordered but by the atomic operations of
/// both sides.
#[derive(Debug)]
pub struct MappedArray<const WORDS: usize> {
    fd: OwnedFd,
    mapping: Mapping,
    n_rows: u32,
}

impl<const WORDS: usize> MappedArray<WORDS> {
    /// Creates an array of zeroed rows.
    ///
    /// # Errors
    /// Without `CAP_BPF`, or if the kernel lacks the memory.
    ///
    /// # Panics
    /// If there are no rows, or rows of no words.
    pub fn create(name: &str, n_rows: u32) -> Result<Self> {
        let mut attributes = MapCreate {
            map_type: TYPE_ARRAY,
            key_size: 4,
            value_size: size(WORDS * 8),
            max_entries: n_rows,
            map_flags: MAPPABLE,
            map_name: object_name(name),
            ..MapCreate::default()
        };
        let fd = bpf_fd(&mut attributes).map_err(|error| Error::new(format!("bpf(BPF_MAP_CREATE) {name}"), error))?;
        let n_bytes = usize::try_from(n_rows).expect("addresses have at least 32 bits") * WORDS * 8;
        let n_bytes = NonZeroUsize::new(n_bytes.next_multiple_of(PAGE)).expect("an array has rows");
        let mapping = Mapping::of(Source::Shared(fd.as_raw_fd(), 0), n_bytes)?;
        Ok(Self { fd, mapping, n_rows })
    }

    /// The number of rows.
    #[must_use]
    pub const fn n_rows(&self) -> u32 {
        self.n_rows
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, idx: u32) -> &[AtomicU64; WORDS] {
        assert!(idx < self.n_rows, "row {idx} of {}", self.n_rows);
        let offset = usize::try_from(idx).expect("addresses have at least 32 bits") * WORDS * 8;
        // SAFETY: the row is inside the mapping, which lives as long as the reference, and begins at a multiple of 8 bytes. Atomic
        // operations allow that a program writes it at the same time.
        unsafe { self.mapping.at(offset).cast().as_ref() }
    }
}

impl<const WORDS: usize> AsFd for MappedArray<WORDS> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

// SAFETY: all access to the memory is by atomic operations.
unsafe impl<const WORDS: usize> Sync for MappedArray<WORDS> {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::{
        super::{
            Assembler, Program, ProgramType,
            Register::{R0, R1, R10},
            XdpAction,
            privilege::or_skip,
        },
        *,
    };

    #[test]
    fn a_program_and_this_process_write_the_same_rows() {
        let Some(rows) = or_skip(MappedArray::<8>::create("rows", 100)) else { return };
        rows.row(99)[7].store(40, Relaxed);
        let mut a = Assembler::new();
        let missing = a.label();
        a.store(R10.word(-4), 99).look_up(&rows, -4, missing).load(R1, R0.double(56)).add(R1, 2);
        a.store(R0.double(56), R1).bind(missing).give(XdpAction::Drop);
        let program = Program::load(ProgramType::Xdp, "rows", &a.assemble()).unwrap();
        program.test_run(&[0; 60], 1).unwrap();
        assert_eq!((rows.row(99)[7].load(Relaxed), rows.row(98)[7].load(Relaxed)), (42, 0));
    }
}
