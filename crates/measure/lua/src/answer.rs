//! Splits an answer for a script into fields and body, as far as the script reads them.
//!
//! A server sends the same answer repeatedly, within a second identical to the byte. Unchanged parts are not passed to the script again.

use fathom_http::users::UserAnswer;

/// The longest body that is kept for comparison with the next one.
const COMPARED_MAX: usize = 64 * 1024;

/// The number of arguments of `response` that the script's function takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ResponseArguments(pub(super) u8);

impl ResponseArguments {
    /// Whether it reads more than the status.
    pub(super) fn needs_message(self) -> bool {
        self.0 > 1
    }

    /// Whether it reads data that wrk does not provide.
    pub(super) fn needs_context(self) -> bool {
        self.0 > 3
    }
}

/// The parts that were passed last.
#[derive(Debug, Default)]
pub(super) struct AnswerParts {
    /// The field lines of the head.
    head: Vec<u8>,
    has_head: bool,
    is_chunked: bool,
    body: Vec<u8>,
    has_body: bool,
}

impl AnswerParts {
    /// Returns the fields and the body, each only if the script reads it and it differs from the last one passed.
    pub(super) fn take(&mut self, answer: &UserAnswer<'_>, looks: ResponseArguments) -> (Option<&[u8]>, Option<&[u8]>) {
        if looks.0 < 2 {
            return (None, None);
        }
        let n_body = usize::try_from(answer.body_bytes).unwrap_or(usize::MAX);
        let (head, body) = answer.message.split_at(answer.message.len().saturating_sub(n_body));
        let first_line = memchr::memchr(b'\n', head).map_or(head.len(), |newline| newline + 1);
        let fields = &head[first_line..];
        let is_new_head = !self.has_head || self.head != fields;
        if is_new_head {
            self.head.clear();
            self.head.extend_from_slice(fields);
            self.is_chunked = is_chunked(fields);
            self.has_head = true;
        }
        let is_new_body = looks.0 > 2 && self.keep_body(body);
        (is_new_head.then_some(&self.head[..]), is_new_body.then_some(&self.body[..]))
    }

    /// Keeps the content of a body. Returns whether it differs from the last one.
    fn keep_body(&mut self, body: &[u8]) -> bool {
        if self.is_chunked {
            self.body.clear();
            join_chunks(body, &mut self.body);
        } else if self.has_body && body.len() <= COMPARED_MAX && self.body == body {
            return false;
        } else {
            self.body.clear();
            self.body.extend_from_slice(body);
        }
        self.has_body = true;
        true
    }
}

/// Whether the last coding is chunked (RFC 9112 section 6.1).
fn is_chunked(fields: &[u8]) -> bool {
    fields.split(|byte| *byte == b'\n').any(|line| {
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        line[..colon].eq_ignore_ascii_case(b"transfer-encoding")
            && line[colon..].trim_ascii_end().to_ascii_lowercase().ends_with(b"chunked")
    })
}

/// Appends the content of a chunked body, which the engine has followed to its end.
fn join_chunks(mut body: &[u8], content: &mut Vec<u8>) {
    while let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(body) {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let rest = &body[line..];
        if size == 0 || size > rest.len() {
            return;
        }
        content.extend_from_slice(&rest[..size]);
        // The line end after the chunk.
        body = rest.get(size + 2..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use fathom_http::users::BatchPosition;
    use fathom_model::units::Nanos;

    use super::*;

    fn answer<'a>(message: &'a [u8], body: &[u8]) -> UserAnswer<'a> {
        UserAnswer {
            status: 200,
            message,
            body_bytes: body.len() as u64,
            sent_at: Nanos::ZERO,
            first_byte_at: Nanos::ZERO,
            ended_at: Nanos::ZERO,
            position: BatchPosition::Last,
            connection_number: 0,
        }
    }

    fn taken(apart: &mut AnswerParts, head: &str, body: &str, looks: u8) -> (Option<String>, Option<String>) {
        let message = format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}");
        let (head, body) = apart.take(&answer(message.as_bytes(), body.as_bytes()), ResponseArguments(looks));
        let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        (text(head), text(body))
    }

    #[test]
    fn only_what_is_looked_at_and_new_is_brought() {
        let mut apart = AnswerParts::default();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(taken(&mut apart, "A: b\r\n", "one", 1), (None, None));
        assert_eq!(taken(&mut apart, "A: b\r\n", "one", 2), (some("A: b\r\n\r\n"), None));
        assert_eq!(taken(&mut apart, "A: b\r\n", "one", 3), (None, some("one")));
        assert_eq!(taken(&mut apart, "A: b\r\n", "one", 4), (None, None));
        assert_eq!(taken(&mut apart, "A: c\r\n", "two", 3), (some("A: c\r\n\r\n"), some("two")));
        assert_eq!(taken(&mut apart, "A: c\r\n", "", 3), (None, some("")));
    }

    #[test]
    fn chunks_are_joined() {
        let mut apart = AnswerParts::default();
        let body = "5;x=y\r\nhello\r\n1\r\n \r\n0\r\nTrailer: t\r\n\r\n";
        let (_, content) = taken(&mut apart, "A: b\r\ntransfer-Encoding:gzip, Chunked\r\n", body, 3);
        assert_eq!(content.as_deref(), Some("hello "));
        // A body that only looks chunked is content.
        assert_eq!(taken(&mut apart, "X: chunked\r\n", body, 3).1.as_deref(), Some(body));
    }
}
