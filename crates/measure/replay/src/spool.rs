//! Records of bytes on disk, in a file without a name, so that nothing is left of it.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    os::unix::fs::FileExt as _,
    sync::Arc,
};

/// A record that is read brings the following ones with it, since they are due next.
pub(crate) const BLOCK: usize = 256 << 10;
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
        Ok(Self { file: BufWriter::with_capacity(BLOCK, tempfile::tempfile()?), offset: 0 })
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

/// Reads records for one worker.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    file: Arc<File>,
    block: Vec<u8>,
    block_offset: u64,
}

impl SpoolReader {
    pub(crate) fn new(file: Arc<File>) -> Self {
        Self { file, block: Vec::new(), block_offset: 0 }
    }

    /// Returns the record at a place.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) fn read(&mut self, place: SpoolPlace) -> io::Result<&[u8]> {
        let offset = u64::from(place.0) * ALIGNMENT as u64;
        let length = self.bytes(offset, LENGTH)?.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length));
        self.bytes(offset + LENGTH as u64, length as usize)
    }

    /// The bytes at an offset.
    fn bytes(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let end = self.block_offset + self.block.len() as u64;
        if offset < self.block_offset || offset + length as u64 > end {
            self.fill(offset, length)?;
        }
        let begin = usize::try_from(offset - self.block_offset).unwrap_or(usize::MAX);
        self.block.get(begin..begin.saturating_add(length)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn fill(&mut self, offset: u64, least: usize) -> io::Result<()> {
        self.block.resize(least.max(BLOCK), 0);
        self.block_offset = offset;
        let mut n = 0;
        // A file that ends earlier has no more exchanges.
        while n < self.block.len() {
            match self.file.read_at(&mut self.block[n..], offset + n as u64) {
                Ok(0) => break,
                Ok(read) => n += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.block.clear();
                    return Err(error);
                }
            }
        }
        self.block.truncate(n);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_as_it_was_written_in_any_order() {
        let mut writer = SpoolWriter::new().unwrap();
        let body = "x".repeat(BLOCK / 3);
        let records: Vec<(String, &str)> = (0..20)
            .map(|n| (format!("record {n}"), &body[usize::from(n == 7)..]))
            .chain([(body.repeat(9), "end"), (String::new(), "")])
            .collect();
        let places: Vec<SpoolPlace> =
            records.iter().map(|(head, body)| writer.add(&[head.as_bytes(), body.as_bytes()]).unwrap()).collect();
        let mut reader = SpoolReader::new(writer.finish().unwrap());
        for number in (0..records.len()).chain((0..records.len()).rev()) {
            let (head, body) = &records[number];
            assert!(reader.read(places[number]).unwrap() == [head.as_bytes(), body.as_bytes()].concat(), "{number}");
        }
    }
}
