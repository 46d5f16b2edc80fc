//! The lines of a file, each within a bound.

use std::io::{self, BufRead};

/// Longer than the lines of servers, whose heads of requests are shorter than 64 KiB, with an escape for every byte.
pub(super) const LINE_MAX: usize = 1 << 20;

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Whole,
    /// Longer than [`LINE_MAX`]: it has been passed over.
    TooLong,
}

/// Reads the next line without its end into `line`, or returns `None` after the last one.
///
/// # Errors
/// The file cannot be read further; the line that has begun is lost.
pub(super) fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<Line>> {
    line.clear();
    let mut kind = Line::Whole;
    let mut is_any = false;
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        let end = memchr::memchr(b'\n', bytes);
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        let n_read = piece.len() + usize::from(end.is_some());
        is_any |= n_read > 0;
        if kind == Line::Whole && line.len() + piece.len() <= LINE_MAX {
            line.extend_from_slice(piece);
        } else {
            kind = Line::TooLong;
            line.clear();
        }
        input.consume(n_read);
        if end.is_some() || n_read == 0 {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(is_any.then_some(kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_that_are_too_long_are_passed_over_and_the_last_needs_no_end() {
        let long = "x".repeat(LINE_MAX + 1);
        let text = format!("first\r\n\n{long}\nlast");
        let mut input = BufReader::with_capacity(100, text.as_bytes());
        let mut line = Vec::new();
        let mut read = Vec::new();
        while let Some(kind) = next_line(&mut input, &mut line).unwrap() {
            read.push((kind, String::from_utf8(line.clone()).unwrap()));
        }
        let whole = |text: &str| (Line::Whole, text.to_owned());
        assert_eq!(read, [whole("first"), whole(""), (Line::TooLong, String::new()), whole("last")]);
    }
}
