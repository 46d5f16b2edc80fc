//! Reads files in /proc repeatedly, and parses them without allocating.
//!
//! It knows the form of their lines, not their meaning.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
    str::{self, FromStr},
};

/// Enough for most files in /proc at the first try.
const ROOM_FIRST: usize = 4096;
/// The size limit. No sampled file comes near it, so a larger file is not the expected one.
const ROOM_MAX: usize = 16 << 20;

/// A file that stays open between samples, with a reusable buffer.
///
/// It stays with the root of its first read and, under /proc/net, with the network namespace of that read.
pub(crate) struct ProcFile {
    path: &'static str,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl ProcFile {
    /// Creates a file by its path under the root, without a leading slash.
    pub(crate) const fn new(path: &'static str) -> Self {
        Self { path, file: None, buffer: Vec::new() }
    }

    /// The path under the root, without a leading slash.
    pub(crate) const fn path(&self) -> &'static str {
        self.path
    }

    /// Reads its current content.
    pub(crate) fn read(&mut self, root: &Path) -> io::Result<&[u8]> {
        match self.fill(root) {
            Ok(size) => Ok(&self.buffer[..size]),
            Err(error) => {
                self.file = None;
                Err(io::Error::new(error.kind(), format!("cannot read /{}: {error}", self.path)))
            }
        }
    }

    fn fill(&mut self, root: &Path) -> io::Result<usize> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::open(root.join(self.path))?),
        };
        let mut size = 0;
        loop {
            if size == ROOM_MAX {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it does not end"));
            }
            if size == self.buffer.len() {
                self.buffer.resize((size * 2).clamp(ROOM_FIRST, ROOM_MAX), 0);
            }
            let offset = u64::try_from(size).expect("a size in memory fits into 64 bits");
            match file.read_at(&mut self.buffer[size..], offset)? {
                0 => return Ok(size),
                n => size += n,
            }
        }
    }
}

/// Reads a short file that is not kept open, at once. The standard library would ask for its size first, which is 0 in /proc, read it in
/// pieces of 32 bytes, and look for more behind its end.
pub(crate) fn read_short(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = vec![0; ROOM_FIRST];
    // The kernel writes such a file as one record, of which a read returns as much as there is room for.
    let size = File::open(path)?.read(&mut text)?;
    if size == text.len() {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it does not end"));
    }
    text.truncate(size);
    Ok(text)
}

/// The lines of a text, without their line ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The fields of a line, separated by white space.
pub(crate) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// Reads an open file of /sys that holds a single number; `None` if it holds something else or cannot be read.
pub(crate) fn read_number(file: &File) -> Option<u64> {
    let mut text = [0; 32];
    let size = file.read_at(&mut text, 0).ok()?;
    number(fields(&text[..size]).next()?)
}

/// Parses a decimal integer; `None` for anything else, including numbers that are too large.
pub(crate) fn number<N: FromStr>(field: &[u8]) -> Option<N> {
    str::from_utf8(field).ok()?.parse().ok()
}

/// The first `N` fields as numbers; fields that are missing or not numbers are `None`.
pub(crate) fn numbers<'a, const N: usize>(fields: impl Iterator<Item = &'a [u8]>) -> [Option<u64>; N] {
    let mut columns = [None; N];
    for (column, field) in columns.iter_mut().zip(fields) {
        *column = number(field);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write as _};

    #[test]
    fn a_file_that_grows_is_read_whole_each_time() {
        let root = tempfile::tempdir().unwrap();
        let mut written = File::create(root.path().join("counters")).unwrap();
        let mut file = ProcFile::new("counters");
        assert_eq!(file.read(root.path()).unwrap(), b"");
        for size in [1, ROOM_FIRST, 5 * ROOM_FIRST] {
            written.write_all(&vec![b'1'; size]).unwrap();
            let whole = fs::read(root.path().join("counters")).unwrap();
            assert_eq!(file.read(root.path()).unwrap(), whole);
        }
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let mut file = ProcFile::new("dev/zero");
        let error = file.read(Path::new("/")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /dev/zero: it does not end");
    }

    #[test]
    fn a_field_that_is_no_number_leaves_a_gap_and_shifts_nothing() {
        let line = b" 1  x 18446744073709551616 -1\t4";
        assert_eq!(numbers(fields(line)), [Some(1), None, None, None, Some(4), None]);
    }
}
