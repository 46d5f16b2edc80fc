//! Arrays shared by programs and user space.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::syscall::{
    MapCreate, MapLookup, MapUpdate, MapUpdateBatch, address, bpf, bpf_fd, descriptor, object_name, size,
};
use crate::{Error, Result, policy::FramePermit};

const TYPE_ARRAY: u32 = 2;
const TYPE_PER_CPU_ARRAY: u32 = 6;
const TYPE_DEVICES: u32 = 14;
const TYPE_SOCKETS: u32 = 17;
/// The maximum number of processors that Linux can be built for (`NR_CPUS_RANGE_END`).
const CPUS_MAX: usize = 8192;

/// Rows of `WORDS` numbers, shared by all processors; a program must use atomic operations to count in it.
#[derive(Debug)]
pub struct Array<const WORDS: usize>(Rows<WORDS>);

/// Rows of `WORDS` numbers, with a copy for each processor.
#[derive(Debug)]
pub struct PerCpuArray<const WORDS: usize> {
    rows: Rows<WORDS>,
    cpus: usize,
}

#[derive(Debug)]
struct Rows<const WORDS: usize> {
    fd: OwnedFd,
    name: String,
}

impl<const WORDS: usize> Rows<WORDS> {
    fn create(map_type: u32, name: &str, entries: u32) -> Result<Self> {
        let mut attributes = MapCreate {
            map_type,
            key_size: 4,
            value_size: size(WORDS * 8),
            max_entries: entries,
            map_name: object_name(name),
            ..MapCreate::default()
        };
        let fd = bpf_fd(&mut attributes).map_err(|error| Error::new(format!("bpf(BPF_MAP_CREATE) {name}"), error))?;
        Ok(Self { fd, name: name.to_owned() })
    }

    /// Reads one entry into a slice of the length that the kernel writes: one row, or one for each processor.
    fn look_up(&self, index: u32, rows: &mut [[u64; WORDS]]) -> Result<()> {
        let mut attributes = MapLookup {
            map_fd: descriptor(&self.fd),
            key: address(&raw const index),
            value: address(rows.as_mut_ptr()),
            ..MapLookup::default()
        };
        bpf(&mut attributes).map(drop).map_err(|error| self.error("BPF_MAP_LOOKUP_ELEM", index, error))
    }

    fn update(&self, index: u32, rows: &[[u64; WORDS]]) -> Result<()> {
        let mut attributes = MapUpdate {
            map_fd: descriptor(&self.fd),
            key: address(&raw const index),
            value: address(rows.as_ptr()),
            ..MapUpdate::default()
        };
        bpf(&mut attributes).map(drop).map_err(|error| self.error("BPF_MAP_UPDATE_ELEM", index, error))
    }

    fn error(&self, command: &str, index: u32, error: io::Error) -> Error {
        Error::new(format!("bpf({command}) {}[{index}]", self.name), error)
    }
}

impl<const WORDS: usize> Array<WORDS> {
    /// Creates an array of zeroed rows.
    ///
    /// # Errors
    /// Without `CAP_BPF`, or if the kernel lacks the memory.
    pub fn create(name: &str, entries: u32) -> Result<Self> {
        Rows::create(TYPE_ARRAY, name, entries).map(Self)
    }

    /// Reads a row.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn get(&self, index: u32) -> Result<[u64; WORDS]> {
        let mut row = [[0; WORDS]];
        self.0.look_up(index, &mut row)?;
        Ok(row[0])
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn set(&self, index: u32, row: &[u64; WORDS]) -> Result<()> {
        self.0.update(index, std::slice::from_ref(row))
    }

    /// Writes successive rows from an index on, in one call. Linux 5.6.
    ///
    /// # Errors
    /// If there are fewer rows; those that there are may be written then.
    pub fn set_from(&self, first: u32, rows: &[[u64; WORDS]]) -> Result<()> {
        let keys: Vec<u32> = (first..).take(rows.len()).collect();
        let mut attributes = MapUpdateBatch {
            keys: address(keys.as_ptr()),
            values: address(rows.as_ptr()),
            count: size(keys.len()),
            map_fd: descriptor(&self.0.fd),
            ..MapUpdateBatch::default()
        };
        bpf(&mut attributes).map(drop).map_err(|error| self.0.error("BPF_MAP_UPDATE_BATCH", first, error))
    }
}

impl<const WORDS: usize> PerCpuArray<WORDS> {
    /// Creates an array of zeroed rows.
    ///
    /// # Errors
    /// Without `CAP_BPF`, or if the kernel lacks the memory.
    pub fn create(name: &str, entries: u32) -> Result<Self> {
        let cpus = possible_cpus()?;
        Rows::create(TYPE_PER_CPU_ARRAY, name, entries).map(|rows| Self { rows, cpus })
    }

    /// Reads a row's copy for each possible processor.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn get(&self, index: u32) -> Result<Vec<[u64; WORDS]>> {
        let mut rows = vec![[0; WORDS]; self.cpus];
        self.rows.look_up(index, &mut rows)?;
        Ok(rows)
    }

    /// Sums a row's copies of all processors, word by word.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn sum(&self, index: u32) -> Result<[u64; WORDS]> {
        let mut sum = [0; WORDS];
        for row in self.get(index)? {
            for (total, word) in sum.iter_mut().zip(row) {
                *total += word;
            }
        }
        Ok(sum)
    }
}

/// A device to which a program may redirect frames.
#[derive(Debug)]
pub struct DeviceMap(OwnedFd);

/// The AF_XDP sockets to which a program may redirect frames, by queue number.
#[derive(Debug)]
pub struct SocketMap(OwnedFd);

/// Creates a map with 32-bit entries that the kernel converts to its own objects.
fn create_map_of_objects(map_type: u32, name: &str, entries: u32) -> Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type,
        key_size: 4,
        value_size: 4,
        max_entries: entries,
        map_name: object_name(name),
        ..MapCreate::default()
    };
    bpf_fd(&mut attributes).map_err(|error| Error::new(format!("bpf(BPF_MAP_CREATE) {name}"), error))
}

fn set_object(map: &OwnedFd, (index, value): (u32, u32)) -> io::Result<()> {
    let (key, value) = (address(&raw const index), address(&raw const value));
    let mut attributes = MapUpdate { map_fd: descriptor(map), key, value, ..MapUpdate::default() };
    bpf(&mut attributes).map(drop)
}

impl DeviceMap {
    /// Creates a map whose entry 0 is a device in this network namespace, whatever namespace the program runs in.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`, or if there is no such device.
    pub fn of(name: &str, ifindex: u32, _: &FramePermit) -> Result<Self> {
        let map = create_map_of_objects(TYPE_DEVICES, name, 1)?;
        set_object(&map, (0, ifindex))
            .map_err(|error| Error::new(format!("bpf(BPF_MAP_UPDATE_ELEM) {name}, device {ifindex}"), error))?;
        Ok(Self(map))
    }
}

impl SocketMap {
    /// Creates an empty map with room for the sockets of `n_queues` queues.
    ///
    /// # Errors
    /// Without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn create(name: &str, n_queues: u32) -> Result<Self> {
        create_map_of_objects(TYPE_SOCKETS, name, n_queues).map(Self)
    }

    /// Directs a queue's frames to a socket that is bound to it.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn set(&self, queue: u32, socket: &impl AsFd) -> Result<()> {
        set_object(&self.0, (queue, descriptor(socket)))
            .map_err(|error| Error::new(format!("bpf(BPF_MAP_UPDATE_ELEM) socket of queue {queue}"), error))
    }
}

impl AsFd for DeviceMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for SocketMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<const WORDS: usize> AsFd for Array<WORDS> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl<const WORDS: usize> AsFd for PerCpuArray<WORDS> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rows.fd.as_fd()
    }
}

/// The number of copies that the kernel keeps of an entry: one per possible processor.
///
/// The number comes from the kernel's own output. In some containers `/sys` lists fewer processors; a buffer sized by that list would be
/// too short, and the kernel would write past its end.
pub(super) fn possible_cpus() -> Result<usize> {
    let mut copies = vec![[u64::MAX]; CPUS_MAX];
    Rows::create(TYPE_PER_CPU_ARRAY, "fathom_cpus", 1)?.look_up(0, &mut copies)?;
    Ok(copies.iter().take_while(|copy| **copy == [0]).count())
}

#[cfg(test)]
mod tests {
    use super::{super::privilege::or_skip, *};

    #[test]
    fn rows_that_are_written_in_one_call_are_where_they_belong() {
        let Some(array) = or_skip(Array::<1>::create("rows", 100)) else { return };
        let rows: Vec<[u64; 1]> = (1..=90).map(|number| [number]).collect();
        array.set_from(10, &rows).unwrap();
        assert_eq!([9, 10, 99].map(|index| array.get(index).unwrap()), [[0], [1], [90]]);
        assert!(array.set_from(11, &rows).is_err(), "the last one has no place");
    }

    #[test]
    fn as_many_processors_are_possible_as_the_kernel_keeps_copies_of() {
        let Some(cpus) = or_skip(possible_cpus()) else { return };
        let online = std::thread::available_parallelism().unwrap().get();
        assert!((online..CPUS_MAX).contains(&cpus), "{cpus}, and {online} can be used");
    }
}
