//! The bytes of a body, up to a limit.

/// How a body is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Its bytes, up to this many.
    UpTo(usize),
    /// Only its length: it is not text.
    #[default]
    Length,
}

/// A body that arrives.
#[derive(Debug, Default)]
pub(super) struct CapturedBody {
    pub(super) keeping: Keeping,
    pub(super) bytes: Vec<u8>,
    pub(super) n_total: u64,
    /// Bytes were left out, because it is too long or the log is full.
    pub(super) is_cut: bool,
    /// Its end was seen.
    pub(super) is_whole: bool,
}

impl CapturedBody {
    /// Whether all its bytes are here.
    pub(super) fn is_kept(&self) -> bool {
        self.is_whole && !self.is_cut && self.keeping != Keeping::Length
    }

    /// Takes a piece; `reserve` says whether there is room for so many bytes.
    pub(super) fn take(&mut self, piece: &[u8], reserve: impl FnOnce(usize) -> bool) {
        self.n_total += piece.len() as u64;
        let Keeping::UpTo(most) = self.keeping else { return };
        let fits = !self.is_cut && self.bytes.len() + piece.len() <= most && reserve(piece.len());
        if fits {
            self.bytes.extend_from_slice(piece);
        } else {
            self.is_cut = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_kept_up_to_its_limit_and_counted_to_its_end() {
        let mut body = CapturedBody { keeping: Keeping::UpTo(5), ..CapturedBody::default() };
        for piece in ["abc", "def", "g"] {
            body.take(piece.as_bytes(), |_| true);
        }
        assert_eq!((body.bytes.as_slice(), body.n_total, body.is_cut), (&b"abc"[..], 7, true), "no hole in the middle");
        let mut picture = CapturedBody::default();
        picture.take(b"abc", |_| true);
        assert_eq!((picture.bytes.len(), picture.n_total, picture.is_cut), (0, 3, false));
    }

    #[test]
    fn a_body_without_room_is_cut() {
        let mut body = CapturedBody { keeping: Keeping::UpTo(5), is_whole: true, ..CapturedBody::default() };
        body.take(b"a", |_| false);
        assert!(body.is_cut && !body.is_kept());
    }
}
