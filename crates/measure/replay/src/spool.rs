//! Records of bytes on disk, in a file without a name, so that nothing is left of it.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    ops::RangeInclusive,
    os::unix::fs::FileExt as _,
    sync::Arc,
};

/// Records are written in pieces of this size.
const WRITTEN: usize = 256 << 10;
/// A record that is read brings the others of its block with it: those that follow it on other connections are due soon. It is a page,
/// because the users of a replay drift apart: then most of a larger block would be read for nothing.
const BLOCK: usize = 4096;
/// The blocks that a worker keeps are so many for each of its users, so that few lose theirs to others, …
const BLOCKS_OF_USER: usize = 8;
/// … and within these bounds: at most 4 MiB.
const BLOCKS: RangeInclusive<usize> = 64..=1024;
/// The length before each record.
const LENGTH: usize = 4;
/// Each record begins at a multiple of so many bytes, so that 32 bits reach through 32 GiB.
const ALIGNMENT: usize = 8;

/// Where a record lies, in units of [`ALIGNMENT`]: millions of them are in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpoolPlace(u32);

/// Writes records one after another.
#[derive(Debug)]
pub(crate) struct SpoolWriter {
    file: BufWriter<File>,
    offset: u64,
}

impl SpoolWriter {
    /// Creates a file without a name in the folder for temporary files.
    ///
    /// # Errors
    /// There is no place for it.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: BufWriter::with_capacity(WRITTEN, tempfile::tempfile()?), offset: 0 })
    }

    /// Adds a record that consists of these parts.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub(crate) fn add(&mut self, parts: &[&[u8]]) -> io::Result<SpoolPlace> {
        let place = SpoolPlace(fits(self.offset / ALIGNMENT as u64)?);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.file.write_all(&fits(length as u64)?.to_ne_bytes())?;
        for part in parts {
            self.file.write_all(part)?;
        }
        let padded = (LENGTH + length).next_multiple_of(ALIGNMENT);
        self.file.write_all(&[0; ALIGNMENT][..padded - LENGTH - length])?;
        self.offset += padded as u64;
        Ok(place)
    }

    /// Returns the file for its readers.
    ///
    /// # Errors
    /// The disk is full, for example.
    pub(crate) fn finish(self) -> io::Result<Arc<File>> {
        self.file.into_inner().map(Arc::new).map_err(io::IntoInnerError::into_error)
    }
}

fn fits(number: u64) -> io::Result<u32> {
    u32::try_from(number).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Reads records for one worker, in any order.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    file: Arc<File>,
    /// A block of the file has one place here, by its number; another one that has the same replaces it.
    blocks: Vec<u8>,
    kept: Vec<KeptBlock>,
    /// A record that is not within one block.
    long: Vec<u8>,
}

/// What is in the place of a block.
#[derive(Debug, Clone, Copy)]
struct KeptBlock {
    number: u64,
    /// Fewer bytes than a block has at the end of the file.
    length: usize,
}

/// No file has so many blocks.
const NOTHING: KeptBlock = KeptBlock { number: u64::MAX, length: 0 };

impl SpoolReader {
    /// `n_users` read records one after another, each in its own part of the file.
    pub(crate) fn new(file: Arc<File>, n_users: usize) -> Self {
        let n = n_users.saturating_mul(BLOCKS_OF_USER).clamp(*BLOCKS.start(), *BLOCKS.end());
        Self { file, blocks: vec![0; n * BLOCK], kept: vec![NOTHING; n], long: Vec::new() }
    }

    /// Returns the record at a place.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) fn read(&mut self, place: SpoolPlace) -> io::Result<&[u8]> {
        const PLACES: usize = BLOCK / ALIGNMENT;
        let number = u64::from(place.0) / PLACES as u64;
        let within = place.0 as usize % PLACES * ALIGNMENT;
        let block = self.block(number)?;
        // By its alignment the length is within one block.
        let Some((length, rest)) = block.get(within..).and_then(<[u8]>::split_first_chunk::<LENGTH>) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let (begin, length) = (within + LENGTH, u32::from_ne_bytes(*length) as usize);
        if length <= rest.len() {
            let at = self.slot(number) * BLOCK + begin;
            return Ok(&self.blocks[at..at + length]);
        }
        self.read_long(number, begin, length)
    }

    /// Returns a record of which a part, or everything but its length, is in the blocks behind its first.
    fn read_long(&mut self, number: u64, begin: usize, length: usize) -> io::Result<&[u8]> {
        let mut long = std::mem::take(&mut self.long);
        long.clear();
        long.extend_from_slice(self.block(number)?.get(begin..).unwrap_or_default());
        let left = length - long.len();
        if left < BLOCK {
            long.extend_from_slice(self.block(number + 1)?.get(..left).unwrap_or_default());
        } else {
            let n = long.len();
            long.resize(length, 0);
            let n_read = read_at(&self.file, &mut long[n..], (number + 1) * BLOCK as u64)?;
            long.truncate(n + n_read);
        }
        self.long = long;
        if self.long.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(&self.long) }
    }

    /// The place of a block.
    fn slot(&self, number: u64) -> usize {
        usize::try_from(number % self.kept.len() as u64).unwrap_or_default()
    }

    /// The bytes of a block.
    fn block(&mut self, number: u64) -> io::Result<&[u8]> {
        let slot = self.slot(number);
        let bytes = &mut self.blocks[slot * BLOCK..][..BLOCK];
        let kept = &mut self.kept[slot];
        if kept.number != number {
            *kept = NOTHING;
            let length = read_at(&self.file, bytes, number * BLOCK as u64)?;
            *kept = KeptBlock { number, length };
        }
        Ok(&bytes[..kept.length])
    }
}

/// Reads as many bytes as there are, and returns their number.
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], offset + n as u64) {
            Ok(0) => break,
            Ok(read) => n += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of all lengths up to two blocks and one of many blocks, together more than a reader keeps.
    fn records() -> Vec<Vec<u8>> {
        let lengths = (0..600).map(|n| n * 37 % (2 * BLOCK)).chain([9 * BLOCK, 0]);
        let record = |(n, length): (usize, usize)| (0..length).map(|at| (n * 31 + at).to_le_bytes()[0]).collect();
        lengths.enumerate().map(record).collect()
    }

    fn written(records: &[Vec<u8>]) -> (Arc<File>, Vec<SpoolPlace>) {
        let mut writer = SpoolWriter::new().unwrap();
        let places = records.iter().map(|record| {
            let (begin, end) = record.split_at(record.len() / 3);
            writer.add(&[begin, end]).unwrap()
        });
        let places = places.collect();
        (writer.finish().unwrap(), places)
    }

    #[test]
    fn every_record_is_read_as_it_was_written_in_any_order() {
        let records = records();
        let (file, places) = written(&records);
        assert!(file.metadata().unwrap().len() > 2 * (BLOCKS.start() * BLOCK) as u64);
        let mut reader = SpoolReader::new(file, 1);
        let n = records.len();
        let scattered = (0..n).map(|number| number * 101 % n);
        for number in (0..n).chain((0..n).rev()).chain(scattered) {
            assert!(reader.read(places[number]).unwrap() == records[number], "{number}");
        }
    }

    #[test]
    fn a_record_that_the_disk_lost_is_an_error_and_the_others_are_read() {
        let records = records();
        let (file, places) = written(&records);
        for lost in [600, 599, 500] {
            let end = u64::from(places[lost + 1].0) * ALIGNMENT as u64;
            file.set_len(end - ALIGNMENT as u64).unwrap();
            let mut reader = SpoolReader::new(Arc::clone(&file), 1);
            for lost in [lost, lost + 1] {
                let error = reader.read(places[lost]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{lost}");
            }
            assert!(reader.read(places[lost - 1]).unwrap() == records[lost - 1], "{lost}");
        }
    }
}
