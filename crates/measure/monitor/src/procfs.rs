//! Files of /proc, read again and again and taken apart without allocating.
//!
//! Knows the shape of their lines, not what they mean.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    str::{self, FromStr},
};

/// Room for most files of /proc at the first try.
const ROOM_FIRST: usize = 4096;
/// No file sampled here comes near this size; whatever does is not what it should be.
const ROOM_MAX: usize = 16 << 20;

/// A file that stays open between samples, with a buffer that is used again.
///
/// It belongs to the root, and under /proc/net to the network namespace, of its first reading.
pub(crate) struct ProcFile {
    path: &'static str,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl ProcFile {
    /// A file by its path under the root, without a leading slash.
    pub(crate) const fn new(path: &'static str) -> Self {
        Self { path, file: None, buffer: Vec::new() }
    }

    /// Its content now.
    pub(crate) fn read(&mut self, root: &Path) -> io::Result<&[u8]> {
        match self.fill(root) {
            Ok(size) => Ok(&self.buffer[..size]),
            Err(error) => {
                self.file = None;
                Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", self.path)))
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

/// The lines of a text, without their ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// What stands between the white space of a line.
pub(crate) fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// A whole decimal number; nothing for anything else, too large ones included.
pub(crate) fn number<N: FromStr>(field: &[u8]) -> Option<N> {
    str::from_utf8(field).ok()?.parse().ok()
}

/// The first `N` fields as numbers, each absent where there is none.
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
        assert_eq!(error.to_string(), "cannot read dev/zero: it does not end");
    }

    #[test]
    fn a_field_that_is_no_number_leaves_a_gap_and_shifts_nothing() {
        let line = b" 1  x 18446744073709551616 -1\t4";
        assert_eq!(numbers(fields(line)), [Some(1), None, None, None, Some(4), None]);
    }
}
