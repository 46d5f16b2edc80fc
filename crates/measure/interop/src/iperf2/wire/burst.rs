//! The header of a burst: with `--trip-times` each write of a TCP stream begins with one.

use fathom_model::units::Nanos;

use super::{halves, put, put_time, time, word};

/// The length of a burst's header.
pub const BURST_LEN: usize = 92;
/// The longest burst that is taken for one: far above any `-l`.
const BURST_MAX: u64 = 1 << 30;

/// Offsets in the header.
mod at {
    pub(super) const START: usize = 12;
    pub(super) const SENT: usize = 20;
    pub(super) const ID: usize = 44;
    pub(super) const SIZE: usize = 48;
    pub(super) const NUMBER: usize = 52;
}

/// The header of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstHeader {
    /// When the stream began, on the sender's wall clock.
    pub start: Nanos,
    /// When the burst was written, on the sender's wall clock.
    pub sent: Nanos,
    /// Its number, from 1.
    pub id: u32,
    /// Its length with this header.
    pub size: u32,
    /// The bytes of the stream up to its end.
    pub n_bytes: u64,
}

impl BurstHeader {
    /// Reads a header; `None` if it is none, such as a burst shorter than its own header.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let size = word(bytes, at::SIZE).filter(|_| bytes.len() >= BURST_LEN)?;
        if !(BURST_LEN as u64..=BURST_MAX).contains(&u64::from(size)) {
            return None;
        }
        Some(Self {
            start: time(bytes, at::START)?,
            sent: time(bytes, at::SENT)?,
            id: word(bytes, at::ID)?,
            size,
            n_bytes: u64::from(word(bytes, at::NUMBER)?) | (u64::from(word(bytes, at::NUMBER + 4)?) << 32),
        })
    }

    /// Writes the header over the beginning of a burst.
    pub fn write(&self, burst: &mut [u8]) {
        burst[..BURST_LEN].fill(0);
        put_time(burst, at::START, self.start);
        put_time(burst, at::SENT, self.sent);
        put(burst, at::ID, self.id);
        put(burst, at::SIZE, self.size);
        let (low, high) = halves(self.n_bytes);
        put(burst, at::NUMBER, low);
        put(burst, at::NUMBER + 4, high);
    }
}

/// Finds the ends of bursts in a stream, however it is cut into pieces.
#[derive(Debug, Clone)]
pub struct BurstReader {
    head: [u8; BURST_LEN],
    n_head: usize,
    burst: Option<BurstHeader>,
    /// The bytes of the burst that are still to come.
    n_left: usize,
    is_lost: bool,
}

impl Default for BurstReader {
    fn default() -> Self {
        Self { head: [0; BURST_LEN], n_head: 0, burst: None, n_left: 0, is_lost: false }
    }
}

impl BurstReader {
    /// Takes the next piece of the stream, and calls `complete` with each burst that ends in it.
    ///
    /// A header that is none makes the rest of the stream unreadable; it is skipped.
    pub fn take(&mut self, mut piece: &[u8], mut complete: impl FnMut(BurstHeader)) {
        while !piece.is_empty() && !self.is_lost {
            if self.burst.is_none() {
                let n = piece.len().min(BURST_LEN - self.n_head);
                self.head[self.n_head..self.n_head + n].copy_from_slice(&piece[..n]);
                (self.n_head, piece) = (self.n_head + n, &piece[n..]);
                if self.n_head < BURST_LEN {
                    return;
                }
                let Some(burst) = BurstHeader::read(&self.head) else {
                    self.is_lost = true;
                    return;
                };
                self.n_left = usize::try_from(burst.size).unwrap_or(usize::MAX) - BURST_LEN;
                self.burst = Some(burst);
            }
            let n = piece.len().min(self.n_left);
            (self.n_left, piece) = (self.n_left - n, &piece[n..]);
            if self.n_left == 0 {
                self.burst.take().into_iter().for_each(&mut complete);
                self.n_head = 0;
            }
        }
    }

    /// Whether a header was none, so that no more bursts are found.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(id: u32, size: u32) -> Vec<u8> {
        let mut bytes = vec![0xee; usize::try_from(size).unwrap()];
        let times = (Nanos::from_secs(7), Nanos::from_secs(8));
        BurstHeader { start: times.0, sent: times.1, id, size, n_bytes: 5 }.write(&mut bytes);
        bytes
    }

    #[test]
    fn bursts_are_found_however_the_stream_is_cut() {
        let stream = [burst(1, 100), burst(2, 92), burst(3, 500)].concat();
        for piece in [1, 7, 91, 92, 93, 692] {
            let (mut reader, mut found) = (BurstReader::default(), Vec::new());
            stream.chunks(piece).for_each(|piece| reader.take(piece, |burst| found.push((burst.id, burst.size))));
            assert_eq!(found, [(1, 100), (2, 92), (3, 500)], "{piece}");
            assert!(!reader.is_lost());
        }
    }

    #[test]
    fn a_burst_shorter_than_its_header_ends_the_search() {
        let mut bytes = burst(1, 92);
        put(&mut bytes, at::SIZE, 91);
        let mut reader = BurstReader::default();
        reader.take(&bytes, |_| panic!("this is none"));
        reader.take(&burst(2, 100), |_| panic!("and what follows is unknown"));
        assert!(reader.is_lost());
    }
}
