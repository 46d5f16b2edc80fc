//! Damages files, in the same way each time for the same seed.

/// A generator of damaged texts.
pub(crate) struct Mutation(u64);

/// Texts that a parser of numbers may fail on.
const TRAPS: [&[u8]; 12] = [
    b"",
    b"\n",
    b" ",
    b":",
    b"=",
    b"-1",
    b"18446744073709551616",
    b"99999999999999999999999999",
    b"ffffffff",
    b"\xff\xfe",
    b"\0",
    b"cpu",
];

impl Mutation {
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the text with one to four pieces cut out, repeated or replaced.
    pub(crate) fn of(&mut self, text: &[u8]) -> Vec<u8> {
        let mut damaged = text.to_vec();
        for _ in 0..=self.below(4) {
            let begin = self.below(damaged.len() + 1);
            let end = (begin + self.below(40)).min(damaged.len());
            match self.below(4) {
                0 => damaged.truncate(begin),
                1 => drop(damaged.drain(begin..end)),
                2 => {
                    let piece = damaged[begin..end].to_vec();
                    drop(damaged.splice(begin..begin, piece));
                }
                _ => drop(damaged.splice(begin..end, TRAPS[self.below(TRAPS.len())].iter().copied())),
            }
        }
        damaged
    }

    /// A number below `end`, by the generator xorshift64 (Marsaglia 2003).
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits fit") % end
    }
}
