//! The file of `-g`: a row per request, sorted by total time, in constant memory.
//!
//! The engine has written its rows in order of completion. They are sorted in chunks that fit into memory, and the chunks are
//! merged.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufRead as _, BufReader, BufWriter, Read, Seek as _, Write},
};

use fathom_model::units::Nanos;
use jiff::{Timestamp, tz::TimeZone};

use super::table::millis;

/// The size of one request: four little-endian numbers of 64 bits.
const ROW_BYTES: usize = 32;
/// The number of rows that are sorted at a time: 2 MiB.
const CHUNK_ROWS: usize = 65_536;
/// The buffer size for reading each chunk back. Merging 10 million requests takes 5 MiB.
const MERGE_BYTES: usize = 32 * 1024;

/// A request of the log. Requests are ordered by total time, the longest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RequestRow {
    total: Nanos,
    /// The start on the wall clock.
    begin: Nanos,
    connect: Nanos,
    first_byte: Nanos,
}

impl RequestRow {
    fn of(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let bytes = bytes[at * 8..][..8].try_into().expect("eight bytes are eight bytes");
            Nanos(u64::from_le_bytes(bytes))
        };
        let [begin, connect, service, first_byte] = [0, 1, 2, 3].map(number);
        Self { total: connect + service, begin, connect, first_byte }
    }

    fn bytes(&self) -> [u8; ROW_BYTES] {
        let times = [self.begin, self.connect, self.total - self.connect, self.first_byte];
        let mut bytes = [0; ROW_BYTES];
        for (place, time) in bytes.chunks_exact_mut(8).zip(times) {
            place.copy_from_slice(&time.0.to_le_bytes());
        }
        bytes
    }

    fn text(&self, zone: &TimeZone) -> String {
        let seconds = self.begin.0 / 1_000_000_000;
        let begin = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        let date = begin.unwrap_or_default().to_zoned(zone.clone()).strftime("%a %b %d %H:%M:%S %Y");
        let [connect, processing, total, wait] =
            [self.connect, self.total - self.connect, self.total, self.first_byte].map(millis);
        format!("{date}\t{seconds}\t{connect}\t{processing}\t{total}\t{wait}\n")
    }
}

/// Reads rows until `room` is full or the log ends. An incomplete last row is dropped.
fn fill(log: &mut impl Read, room: &mut Vec<u8>) -> io::Result<()> {
    room.clear();
    log.by_ref().take((CHUNK_ROWS * ROW_BYTES) as u64).read_to_end(room)?;
    room.truncate(room.len() / ROW_BYTES * ROW_BYTES);
    Ok(())
}

/// Sorts a log of requests in chunks. Each chunk is a file without a name.
fn sorted_chunks(mut log: impl Read) -> io::Result<Vec<File>> {
    let mut pieces = Vec::new();
    let mut room = Vec::with_capacity(CHUNK_ROWS * ROW_BYTES);
    loop {
        fill(&mut log, &mut room)?;
        if room.is_empty() {
            return Ok(pieces);
        }
        let mut rows: Vec<RequestRow> = room.chunks_exact(ROW_BYTES).map(RequestRow::of).collect();
        rows.sort_unstable();
        let mut piece = tempfile::tempfile()?;
        let mut out = BufWriter::new(&mut piece);
        for row in &rows {
            out.write_all(&row.bytes())?;
        }
        out.flush()?;
        drop(out);
        piece.rewind()?;
        pieces.push(piece);
    }
}

fn next(piece: &mut BufReader<File>) -> io::Result<Option<RequestRow>> {
    if piece.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut bytes = [0; ROW_BYTES];
    piece.read_exact(&mut bytes)?;
    Ok(Some(RequestRow::of(&bytes)))
}

/// Writes the rows of a log, sorted by total time.
///
/// # Errors
/// Returns errors from reading the log, from a file in the temporary directory, and from writing to `out`.
pub(super) fn write(log: impl Read, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    let zone = TimeZone::system();
    out.write_all(b"starttime\tseconds\tctime\tdtime\tttime\twait\n")?;
    let pieces = sorted_chunks(log)?;
    let mut pieces: Vec<_> = pieces.into_iter().map(|piece| BufReader::with_capacity(MERGE_BYTES, piece)).collect();
    let mut heads = BinaryHeap::new();
    for (idx, piece) in pieces.iter_mut().enumerate() {
        heads.extend(next(piece)?.map(|row| Reverse((row, idx))));
    }
    while let Some(Reverse((row, idx))) = heads.pop() {
        out.write_all(row.text(&zone).as_bytes())?;
        heads.extend(next(&mut pieces[idx])?.map(|row| Reverse((row, idx))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(rows: impl Iterator<Item = RequestRow>) -> Vec<u8> {
        rows.flat_map(|row| row.bytes()).collect()
    }

    fn row(total_us: u64, connect_us: u64) -> RequestRow {
        let [total, connect, first_byte] = [total_us, connect_us, 700].map(Nanos::from_micros);
        RequestRow { total, begin: Nanos(1_795_271_696_500_000_000), connect, first_byte }
    }

    #[test]
    fn a_row_is_written_as_ab_writes_it() {
        let text = row(4_600, 1_400).text(&TimeZone::UTC);
        assert_eq!(text, "Sat Nov 21 14:34:56 2026\t1795271696\t1\t3\t5\t1\n");
        assert_eq!(RequestRow::of(&row(4_600, 1_400).bytes()), row(4_600, 1_400));
    }

    #[test]
    fn more_rows_than_fit_into_a_piece_come_out_in_order() {
        let n = (CHUNK_ROWS + CHUNK_ROWS / 2) as u64;
        // A step that is coprime to n visits every number once.
        let shuffled = (0..n).map(|i| row((i * 7_919) % n * 1_000, 0));
        let log = log(shuffled.chain([row(500, 0)]));
        let mut out = Vec::new();
        write(log.as_slice(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let totals: Vec<u64> =
            text.lines().skip(1).map(|line| line.split('\t').nth(4).unwrap().parse().unwrap()).collect();
        assert_eq!(totals.len() as u64, n + 1);
        assert!(totals.is_sorted());
        assert_eq!((totals[0], totals[1], totals[2], totals[totals.len() - 1]), (0, 1, 1, n - 1));
    }

    #[test]
    fn a_row_that_was_cut_off_is_left_out() {
        let log = log([row(1_000, 0), row(2_000, 0)].into_iter());
        let mut out = Vec::new();
        write(&log[..ROW_BYTES + 5], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
    }
}
