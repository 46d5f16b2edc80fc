//! Maps of other programs, read as numbers: the counters of a device that works in XDP or `tc`.

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use super::{
    map::possible_cpus,
    syscall::{
        MapById, MapInfoOf, MapLookup, MapNextKey, NextMapId, ObjectGet, address, bpf, bpf_fd, descriptor, size,
    },
};
use crate::{Error, Result};

/// Map types of `linux/bpf.h` whose values are stored in the map itself, once or for each processor.
const SHARED: [u32; 3] = [1, 2, 9];
const PER_CPU: [u32; 3] = [5, 6, 10];
/// `BPF_F_RDONLY`: the descriptor only reads.
const READ_ONLY: u32 = 1 << 3;
/// More rows are no counters.
const ROWS_MAX: usize = 1 << 16;
/// The longest key that is a number, and the longest value that is a row of counters, in bytes.
const KEY_MAX: u32 = 8;
const VALUE_MAX: u32 = 4096;

/// A map that belongs to another program. Nothing is written to it.
#[derive(Debug)]
pub struct ForeignMap {
    fd: OwnedFd,
    info: MapInfo,
    /// As the map was named when it was opened.
    named: String,
}

/// How a map is called by who opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapName {
    /// A path within a mounted BPF file system.
    Pinned(String),
    /// The number of `bpftool map`.
    Id(u32),
    /// The name that its program gave it, cut to 15 bytes by the kernel; only one map may have it.
    Name(String),
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct MapInfo {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; 16],
}

impl MapInfo {
    fn is_per_cpu(&self) -> bool {
        PER_CPU.contains(&self.map_type)
    }

    fn is_named(&self, name: &str) -> bool {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        let wanted = name.as_bytes();
        self.name[..length] == wanted[..wanted.len().min(self.name.len() - 1)]
    }
}

impl MapName {
    /// A text with a slash is a path, digits are an id, and everything else is a name.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.parse() {
            _ if text.contains('/') => Self::Pinned(text.to_owned()),
            Ok(id) => Self::Id(id),
            Err(_) => Self::Name(text.to_owned()),
        }
    }
}

impl ForeignMap {
    /// Opens a map for reading.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EPERM` without the right to read it (`CAP_SYS_ADMIN`, but for a pinned one that its owner may read),
    /// and the kernel's reason else; a name that several maps have; a type or a size that holds no counts.
    pub fn open(name: &MapName) -> Result<Self> {
        let failed = |error: io::Error| Error::new(format!("open the map {}", name.text()), error);
        let fd = match name {
            MapName::Pinned(path) => pinned(Path::new(path)),
            MapName::Id(id) => by_id(*id),
            MapName::Name(wanted) => by_name(wanted),
        };
        let fd = fd.map_err(failed)?;
        let info = info_of(&fd).map_err(failed)?;
        let refused = |why: String| Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
        if !SHARED.contains(&info.map_type) && !info.is_per_cpu() {
            return refused(format!("it is of type {}, neither an array nor a hash", info.map_type));
        }
        if info.key_size > KEY_MAX {
            return refused(format!("its keys are {} bytes long, and no numbers", info.key_size));
        }
        let is_counters =
            info.value_size == 4 || (info.value_size % 8 == 0 && (8..=VALUE_MAX).contains(&info.value_size));
        if !is_counters {
            return refused(format!("its values are {} bytes long, and no row of 64-bit numbers", info.value_size));
        }
        Ok(Self { fd, info, named: name.text() })
    }

    /// Returns the numbers of each row by its key, those of a row for each processor as their sum. Rows of zeros are left out. Where the program
    /// removes a row meanwhile, the kernel begins with the first one again: no row counts twice.
    ///
    /// # Errors
    /// If the kernel refuses to read, or there are more rows than counters.
    pub fn rows(&self) -> Result<BTreeMap<u64, Vec<u64>>> {
        let n_copies = if self.info.is_per_cpu() { possible_cpus()? } else { 1 };
        let failed = |error: io::Error| Error::new(format!("read the map {}", self.named), error);
        let mut rows = BTreeMap::new();
        let mut key = None;
        for _ in 0..=ROWS_MAX {
            let Some(next) = self.next_key(key).map_err(failed)? else { return Ok(rows) };
            // A row that its program has just removed is no error.
            if let Some(words) =
                self.row(next, n_copies).map_err(failed)?.filter(|words| words.iter().any(|word| *word > 0))
            {
                rows.insert(self.number(next), words);
            }
            key = Some(next);
        }
        Err(failed(io::Error::other(format!("it has more than {ROWS_MAX} rows"))))
    }

    fn next_key(&self, key: Option<[u8; 8]>) -> io::Result<Option<[u8; 8]>> {
        let mut next = [0; 8];
        let mut attributes = MapNextKey {
            map_fd: descriptor(&self.fd),
            key: key.as_ref().map_or(0, |key| address(key.as_ptr())),
            next_key: address(next.as_mut_ptr()),
            ..MapNextKey::default()
        };
        found(bpf(&mut attributes)).map(|is_there| is_there.map(|_| next))
    }

    fn row(&self, key: [u8; 8], n_copies: usize) -> io::Result<Option<Vec<u64>>> {
        let n_words = usize::try_from(self.info.value_size.div_ceil(8)).expect("a value is small");
        let mut words = vec![0_u64; n_words * n_copies];
        let mut attributes = MapLookup {
            map_fd: descriptor(&self.fd),
            key: address(key.as_ptr()),
            value: address(words.as_mut_ptr()),
            ..MapLookup::default()
        };
        if found(bpf(&mut attributes))?.is_none() {
            return Ok(None);
        }
        let mut sums = vec![0_u64; n_words];
        for copy in words.chunks_exact(n_words) {
            for (sum, word) in sums.iter_mut().zip(copy) {
                // The kernel pads a value of four bytes.
                let value = if self.info.value_size == 4 { u64::from(first_half(*word)) } else { *word };
                *sum = sum.wrapping_add(value);
            }
        }
        Ok(Some(sums))
    }

    /// The number that a key is, in the byte order of this machine.
    fn number(&self, key: [u8; 8]) -> u64 {
        let length = usize::try_from(self.info.key_size).expect("a key is small");
        let mut bytes = [0; 8];
        let at = if cfg!(target_endian = "big") { 8 - length } else { 0 };
        bytes[at..at + length].copy_from_slice(&key[..length]);
        u64::from_ne_bytes(bytes)
    }
}

impl MapName {
    fn text(&self) -> String {
        match self {
            Self::Pinned(text) | Self::Name(text) => text.clone(),
            Self::Id(id) => format!("id {id}"),
        }
    }
}

/// The first four bytes of a word in memory.
fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Turns "there is none" into nothing.
fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    bpf_fd(&mut ObjectGet { pathname: address(path.as_ptr()), file_flags: READ_ONLY, ..ObjectGet::default() })
}

fn by_id(map_id: u32) -> io::Result<OwnedFd> {
    bpf_fd(&mut MapById { map_id, open_flags: READ_ONLY, ..MapById::default() })
}

fn by_name(name: &str) -> io::Result<OwnedFd> {
    let mut named = Vec::new();
    let mut start_id = 0;
    loop {
        let mut attributes = NextMapId { start_id, ..NextMapId::default() };
        if found(bpf(&mut attributes))?.is_none() {
            break;
        }
        start_id = attributes.next_id;
        // A map may be gone by now.
        let Some(fd) = found(by_id(start_id))? else { continue };
        if info_of(&fd)?.is_named(name) {
            named.push((start_id, fd));
        }
    }
    let ids: Vec<String> = named.iter().map(|(id, _)| id.to_string()).collect();
    match (named.pop(), ids.len()) {
        (Some((_, fd)), 1) => Ok(fd),
        (None, _) => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} maps have this name: give the id of one, {}", ids.len(), ids.join(" or ")),
        )),
    }
}

fn info_of(fd: &OwnedFd) -> io::Result<MapInfo> {
    let mut info = MapInfo::default();
    let mut attributes =
        MapInfoOf { map_fd: descriptor(&fd.as_fd()), length: size(size_of::<MapInfo>()), info: address(&raw mut info) };
    bpf(&mut attributes).map(|_| info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Array, PerCpuArray, privilege::or_skip};

    /// A name that no other test uses, and no other run of this one.
    fn own(word: &str) -> String {
        format!("{word}{:x}", std::process::id())
    }

    #[test]
    fn rows_of_another_program_are_read_by_name_and_by_id() {
        let name = own("far");
        let Some(array) = or_skip(Array::<2>::create(&name, 10)) else { return };
        array.set(3, &[7, 8]).unwrap();
        array.set(9, &[0, 1]).unwrap();
        let map = ForeignMap::open(&MapName::of(&name)).unwrap();
        assert_eq!(map.rows().unwrap(), [(3, vec![7, 8]), (9, vec![0, 1])].into(), "rows of zeros are left out");
        let again = ForeignMap::open(&MapName::Id(map.info.id)).unwrap();
        assert_eq!(again.rows().unwrap().len(), 2);
    }

    #[test]
    fn two_maps_of_one_name_are_told_apart_by_their_ids() {
        let name = own("twin");
        let Some(_first) = or_skip(PerCpuArray::<1>::create(&name, 1)) else { return };
        let only = ForeignMap::open(&MapName::of(&name)).unwrap();
        assert_eq!(only.rows().unwrap(), BTreeMap::new());
        let _second = PerCpuArray::<1>::create(&name, 1).unwrap();
        let error = ForeignMap::open(&MapName::of(&name)).unwrap_err();
        assert!(
            error.source.to_string().contains(&format!("2 maps have this name: give the id of one, {}", only.info.id)),
            "{error:?}"
        );
    }

    #[test]
    fn what_is_no_map_has_a_reason() {
        let Some(_array) = or_skip(Array::<1>::create(&own("is"), 1)) else { return };
        for name in ["/sys/fs/bpf/none", "no_such_map", "4294967295"] {
            let error = ForeignMap::open(&MapName::of(name)).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_path_an_id_and_a_name_are_told_apart() {
        assert_eq!(MapName::of("/sys/fs/bpf/x"), MapName::Pinned("/sys/fs/bpf/x".to_owned()));
        assert_eq!(MapName::of("17"), MapName::Id(17));
        assert_eq!(MapName::of("xdp_stats_map"), MapName::Name("xdp_stats_map".to_owned()));
    }
}
