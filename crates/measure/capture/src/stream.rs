//! One direction of a connection: its bytes in order, whatever order they were captured in.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;

/// The distance to the next byte up to which a sequence number belongs to a stream: the largest window (RFC 7323 section 2.3).
const WINDOW: i32 = 1 << 30;
/// Positions begin here, so that repeated bytes have positions too.
const BEGIN: u64 = 1 << 32;

/// Bytes as one segment brought them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) sequence: u32,
    pub(crate) bytes: Vec<u8>,
    /// The next byte that its sender expected.
    pub(crate) acknowledged: Option<u32>,
    pub(crate) time: Nanos,
}

/// The bytes of one direction (RFC 9293 section 3.4). The first copy of a byte wins.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The sequence number that the stream begins with.
    pub(crate) first: u32,
    /// The sequence number of the next byte.
    next: u32,
    /// The position of the next byte, which does not wrap.
    position: u64,
    /// Pieces behind missing bytes, by position. They do not overlap.
    held: BTreeMap<u64, Piece>,
    n_held: usize,
    /// The position of the FIN.
    fin: Option<u64>,
    is_end_told: bool,
}

impl Stream {
    pub(crate) fn new(first: u32) -> Self {
        let held = BTreeMap::new();
        Self { first, next: first, position: BEGIN, held, n_held: 0, fin: None, is_end_told: false }
    }

    /// The sequence number of the next byte.
    pub(crate) fn next_sequence(&self) -> u32 {
        self.next
    }

    /// The time of the first piece that is held.
    pub(crate) fn held_since(&self) -> Option<Nanos> {
        self.held.values().next().map(|piece| piece.time)
    }

    /// The number of pieces that are held.
    pub(crate) fn n_pieces(&self) -> usize {
        self.held.len()
    }

    /// Whether its sender had sent everything before this sequence number, which the other side acknowledged.
    pub(crate) fn has_reached(&self, acknowledged: u32) -> bool {
        // A FIN has a sequence number too.
        distance(acknowledged, self.next) <= i32::from(self.is_finished())
    }

    /// The number of bytes behind missing ones.
    pub(crate) fn n_held(&self) -> usize {
        self.n_held
    }

    /// Whether a sequence number can belong to this stream.
    pub(crate) fn is_near(&self, sequence: u32) -> bool {
        (-WINDOW..=WINDOW).contains(&distance(sequence, self.next))
    }

    fn position_of(&self, sequence: u32) -> u64 {
        self.position.saturating_add_signed(i64::from(distance(sequence, self.next)))
    }

    fn advance(&mut self, n: u64) {
        self.position += n;
        self.next = wrapping_add(self.next, n);
    }

    /// Passes over bytes that come in order, and returns those that are new. `None` if they have to be held.
    pub(crate) fn pass<'a>(&mut self, sequence: u32, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let begin = self.position_of(sequence);
        if !self.held.is_empty() || begin > self.position {
            return None;
        }
        let n_known = usize::try_from(self.position - begin).unwrap_or(usize::MAX).min(bytes.len());
        let new = &bytes[n_known..];
        self.advance(new.len() as u64);
        Some(new)
    }

    /// Holds those bytes that are new. Returns their number.
    pub(crate) fn hold(&mut self, piece: &Piece) -> usize {
        let begin = self.position_of(piece.sequence);
        let end = begin + piece.bytes.len() as u64;
        let mut at = begin.max(self.position);
        let mut n_new = 0;
        while at < end {
            let before = self.held.range(..=at).next_back();
            let covered = before.map(|(begin, piece)| begin + piece.bytes.len() as u64).filter(|end| *end > at);
            if let Some(covered) = covered {
                at = covered;
                continue;
            }
            let until = self.held.range(at..).next().map_or(end, |(next, _)| end.min(*next));
            let part = |position: u64| usize::try_from(position - begin).expect("it is within the piece");
            let bytes = piece.bytes[part(at)..part(until)].to_vec();
            n_new += bytes.len();
            self.held.insert(at, Piece { sequence: wrapping_add(piece.sequence, at - begin), bytes, ..*piece });
            at = until;
        }
        self.n_held += n_new;
        n_new
    }

    /// Returns the next piece, if no byte before it is missing, and if it may come.
    pub(crate) fn next_piece(&mut self, may_come: impl FnOnce(&Piece) -> bool) -> Option<Piece> {
        let entry = self.held.first_entry().filter(|entry| *entry.key() == self.position && may_come(entry.get()))?;
        let piece = entry.remove();
        self.n_held -= piece.bytes.len();
        self.advance(piece.bytes.len() as u64);
        Some(piece)
    }

    /// Passes over missing bytes, up to what is held or to the FIN. Returns their number.
    pub(crate) fn skip_missing(&mut self) -> Option<u64> {
        let known = self.held.keys().next().copied().or(self.fin)?;
        let n = known.checked_sub(self.position).filter(|n| *n > 0)?;
        self.advance(n);
        Some(n)
    }

    /// Notes where the FIN is: behind this sequence number.
    pub(crate) fn finish_at(&mut self, sequence: u32) {
        let position = self.position_of(sequence);
        self.fin.get_or_insert(position.max(self.position));
    }

    /// Whether the FIN was captured.
    pub(crate) fn has_fin(&self) -> bool {
        self.fin.is_some()
    }

    /// Whether all bytes up to the FIN have passed.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| fin <= self.position)
    }

    /// Whether the stream has just finished; true once.
    pub(crate) fn tell_end(&mut self) -> bool {
        let is_new = self.is_finished() && !self.is_end_told;
        self.is_end_told |= is_new;
        is_new
    }

    /// Returns everything that is held.
    pub(crate) fn into_held(self) -> impl Iterator<Item = Piece> {
        self.held.into_values()
    }
}

/// How far `sequence` is behind `other` in the direction of the stream, as sequence numbers are compared (RFC 9293 section 3.4).
pub(crate) fn distance(sequence: u32, other: u32) -> i32 {
    sequence.wrapping_sub(other).cast_signed()
}

/// Adds a number of bytes to a sequence number.
pub(crate) fn wrapping_add(sequence: u32, n: u64) -> u32 {
    sequence.wrapping_add(u32::try_from(n & u64::from(u32::MAX)).expect("32 bits are left"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(sequence: u32, bytes: &[u8]) -> Piece {
        Piece { sequence, bytes: bytes.to_vec(), acknowledged: None, time: Nanos(0) }
    }

    fn ready(stream: &mut Stream) -> Vec<u8> {
        std::iter::from_fn(|| stream.next_piece(|_| true)).flat_map(|piece| piece.bytes).collect()
    }

    #[test]
    fn bytes_come_out_in_order_across_the_wrap_of_sequence_numbers() {
        let first = u32::MAX - 2;
        let mut stream = Stream::new(first);
        assert_eq!(stream.pass(first, b"ab"), Some(&b"ab"[..]));
        assert_eq!(stream.pass(first.wrapping_add(4), b"ef"), None);
        assert_eq!(stream.hold(&piece(first.wrapping_add(4), b"ef")), 2);
        assert_eq!((stream.next_piece(|_| true), stream.n_held()), (None, 2));
        assert_eq!(stream.hold(&piece(first.wrapping_add(1), b"xcd")), 2);
        assert_eq!((ready(&mut stream), stream.n_held()), (b"cdef".to_vec(), 0));
        assert_eq!(stream.next_sequence(), 3);
    }

    #[test]
    fn the_first_copy_of_a_byte_wins() {
        let mut stream = Stream::new(0);
        assert_eq!(stream.hold(&piece(2, b"CD")), 2);
        assert_eq!(stream.hold(&piece(6, b"GH")), 2);
        assert_eq!(stream.hold(&piece(1, b"bcdefghi")), 4);
        assert_eq!(stream.hold(&piece(3, b"xxx")), 0);
        assert_eq!(stream.hold(&piece(0, b"ax")), 1);
        assert_eq!(ready(&mut stream), b"abCDefGHi");
        assert_eq!(stream.pass(4, b"zzzzzj"), Some(&b"j"[..]));
        assert_eq!(stream.pass(4, b"zzz"), Some(&b""[..]));
    }

    #[test]
    fn missing_bytes_are_counted_up_to_what_is_held_and_to_the_end() {
        let mut stream = Stream::new(0);
        stream.hold(&piece(5, b"f"));
        stream.finish_at(8);
        assert_eq!(stream.skip_missing(), Some(5));
        assert_eq!((stream.skip_missing(), ready(&mut stream), stream.tell_end()), (None, b"f".to_vec(), false));
        assert_eq!(stream.skip_missing(), Some(2));
        assert_eq!((stream.tell_end(), stream.tell_end(), stream.is_finished()), (true, false, true));
    }

    #[test]
    fn a_sequence_number_from_far_away_is_of_another_stream() {
        let stream = Stream::new(100);
        assert!(stream.is_near(50) && stream.is_near(1 << 30));
        assert!(!stream.is_near((1 << 30) + 101) && !stream.is_near(1 << 31));
    }
}
