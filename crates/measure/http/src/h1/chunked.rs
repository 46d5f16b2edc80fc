//! Finds the end of a chunked body (RFC 9112 section 7.1).

use super::Malformed;

/// The state of a chunked body: the part that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunked {
    /// The first digit of a chunk's size.
    SizeBegin,
    /// Further digits.
    Size(u64),
    /// Anything after the digits, up to the end of the line.
    Extension(u64),
    /// The line feed after the size.
    SizeEnd(u64),
    /// Content of the chunk, with the bytes left.
    Content(u64),
    /// The carriage return after the chunk.
    ContentReturn,
    /// The line feed after the chunk.
    ContentEnd,
    /// The first byte of a trailer line, or of the empty line that ends the body.
    TrailerBegin,
    /// The rest of a trailer line.
    Trailer,
    /// The last line feed.
    End,
}

impl Chunked {
    /// Follows the body through `bytes`. Returns the number of bytes that belong to it once it has ended, and `None` before.
    pub(crate) fn follow(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        self.follow_content(bytes, |_| {})
    }

    /// Does the same, and gives the content of the chunks to `take`.
    ///
    /// # Errors
    /// The chunks are malformed.
    pub fn follow_content(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<Option<usize>, Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            if let Self::Content(left) = *self {
                let step = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                take(&bytes[at..at + step]);
                at += step;
                let left = left - step as u64;
                *self = if left == 0 { Self::ContentReturn } else { Self::Content(left) };
                continue;
            }
            let byte = bytes[at];
            at += 1;
            if (*self, byte) == (Self::End, b'\n') {
                return Ok(Some(at));
            }
            *self = self.after(byte)?;
        }
        Ok(None)
    }

    fn after(self, byte: u8) -> Result<Self, Malformed> {
        Ok(match (self, byte) {
            (Self::SizeBegin, _) => Self::Size(digit(byte).ok_or(Malformed::ChunkSize)?),
            (Self::Size(size) | Self::Extension(size), b'\r') => Self::SizeEnd(size),
            (Self::Size(size), b';' | b' ' | b'\t') => Self::Extension(size),
            (Self::Size(size), _) => match digit(byte) {
                Some(digit) if size >> 60 == 0 => Self::Size(size << 4 | digit),
                _ => return Err(Malformed::ChunkSize),
            },
            (Self::Extension(size), _) if byte != b'\n' => Self::Extension(size),
            (Self::SizeEnd(size @ 1..), b'\n') => Self::Content(size),
            (Self::ContentReturn, b'\r') => Self::ContentEnd,
            (Self::ContentEnd, b'\n') => Self::SizeBegin,
            (Self::TrailerBegin, b'\r') => Self::End,
            (Self::SizeEnd(0) | Self::TrailerBegin | Self::Trailer, b'\n') => Self::TrailerBegin,
            (Self::TrailerBegin | Self::Trailer, _) => Self::Trailer,
            (Self::Extension(_) | Self::SizeEnd(_), _) => return Err(Malformed::ChunkSize),
            (Self::Content(_) | Self::ContentReturn | Self::ContentEnd | Self::End, _) => {
                return Err(Malformed::ChunkEnd);
            }
        })
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(body: &[u8]) -> Result<Option<usize>, Malformed> {
        Chunked::SizeBegin.follow(body)
    }

    #[test]
    fn a_body_ends_behind_its_trailer() {
        for body in ["0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "A;x=\"y\"\r\n0123456789\r\n00\r\nDigest: x\r\n\r\n"] {
            let surplus = [body.as_bytes(), b"HTTP/1.1"].concat();
            assert_eq!(follow(&surplus), Ok(Some(body.len())), "{body:?}");
            assert_eq!(follow(&body.as_bytes()[..body.len() - 1]), Ok(None), "{body:?}");
        }
    }

    #[test]
    fn a_chunk_that_is_not_what_its_size_says_is_refused() {
        for body in ["\r\n", "x\r\n", "5\nhello", "5;a\nhello", "5\rhello", "11111111111111111\r\n", "-1\r\n"] {
            assert_eq!(follow(body.as_bytes()), Err(Malformed::ChunkSize), "{body:?}");
        }
        for body in ["5\r\nhello!", "5\r\nhello\r0", "0\r\n\rx"] {
            assert_eq!(follow(body.as_bytes()), Err(Malformed::ChunkEnd), "{body:?}");
        }
    }
}
