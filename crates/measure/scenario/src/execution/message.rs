//! An answer as users see it: its fields, and its body in one piece.
//!
//! The engine has already followed the message to its end, so it is complete and valid; here it is only examined.

/// A complete answer.
#[derive(Debug, Clone, Copy)]
pub struct HttpMessage<'m> {
    head: &'m [u8],
    body: &'m [u8],
}

impl<'m> HttpMessage<'m> {
    /// Reads an answer as received; `scratch` takes the body if it was chunked.
    #[must_use]
    pub fn read(bytes: &'m [u8], scratch: &'m mut Vec<u8>) -> Self {
        let end = head_end(bytes);
        let mut message = Self { head: &bytes[..end], body: &bytes[end..] };
        // Several fields of one name form one list (RFC 9110 section 5.3), whose last element counts.
        if message.fields("transfer-encoding").last().is_some_and(ends_with_chunked) {
            scratch.clear();
            join_chunks(message.body, scratch);
            message.body = scratch;
        }
        message
    }

    /// An answer whose body has neither chunks nor compression any more.
    pub(crate) fn decoded(head: &'m [u8], body: &'m [u8]) -> Self {
        Self { head, body }
    }

    /// The head without the status line and with the empty line, as received.
    #[must_use]
    pub fn head(&self) -> &'m [u8] {
        self.head
    }

    /// The body without chunk framing, still compressed.
    #[must_use]
    pub fn body(&self) -> &'m [u8] {
        self.body
    }

    /// The first field of this name, ignoring case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'m [u8]> {
        self.fields(name).next()
    }

    /// All fields of this name, in order.
    pub fn fields<'n>(&self, name: &'n str) -> impl Iterator<Item = &'m [u8]> + use<'m, 'n> {
        let lines = self.head.split(|byte| *byte == b'\n').skip(1);
        lines.filter_map(move |line| {
            let (key, rest) = line.split_at_checked(name.len())?;
            let value = rest.strip_prefix(b":")?;
            key.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
        })
    }

    /// The content codings of the body, in the order in which they were applied; empty if there are none.
    pub fn codings(&self) -> impl Iterator<Item = &'m [u8]> + use<'m> {
        let all = self.fields("content-encoding").flat_map(|field| field.split(|byte| *byte == b','));
        all.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
    }
}

/// The offset of the body: after the first empty line, except for those before the answer, which the engine skips too.
fn head_end(bytes: &[u8]) -> usize {
    let mut start = 0;
    while let Some([b'\n', ..] | [b'\r', b'\n', ..]) = bytes.get(start..) {
        start += if bytes[start] == b'\n' { 1 } else { 2 };
    }
    for at in memchr::memchr_iter(b'\n', &bytes[start..]).map(|at| start + at) {
        match bytes.get(at + 1..) {
            Some([b'\n', ..]) => return at + 2,
            Some([b'\r', b'\n', ..]) => return at + 3,
            _ => {}
        }
    }
    bytes.len()
}

fn ends_with_chunked(coding: &[u8]) -> bool {
    let last = coding.rsplit(|byte| *byte == b',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

/// Joins the contents of chunks (RFC 9112 section 7.1); truncated data ends where it ends.
fn join_chunks(mut bytes: &[u8], joined: &mut Vec<u8>) {
    while let Some(line_end) = memchr::memchr(b'\n', bytes) {
        let digits = bytes[..line_end].iter().take_while(|byte| byte.is_ascii_hexdigit());
        let size = digits.fold(0usize, |size, digit| {
            size.saturating_mul(16).saturating_add(char::from(*digit).to_digit(16).unwrap_or(0) as usize)
        });
        if size == 0 {
            return;
        }
        let content = &bytes[line_end + 1..];
        let (chunk, rest) = content.split_at(size.min(content.len()));
        joined.extend_from_slice(chunk);
        bytes = rest.strip_prefix(b"\r").unwrap_or(rest);
        bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_whatever_the_case() {
        let bytes = b"HTTP/1.1 200 OK\r\nX-Token:  abc \r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\nbody\r\n\r\nmore";
        let mut scratch = Vec::new();
        let message = HttpMessage::read(bytes, &mut scratch);
        assert_eq!(message.field("x-token"), Some(b"abc".as_slice()));
        assert_eq!(message.field("X-Tok"), None);
        assert_eq!(message.fields("Set-Cookie").collect::<Vec<_>>(), [b"a=1", b"b=2"]);
        assert_eq!(message.body(), b"body\r\n\r\nmore");
    }

    #[test]
    fn empty_lines_before_an_answer_do_not_end_its_head() {
        let bytes = b"\r\n\n\r\nHTTP/1.1 200 OK\r\nX: 1\r\n\r\nbody";
        let mut scratch = Vec::new();
        let message = HttpMessage::read(bytes, &mut scratch);
        assert_eq!((message.field("x"), message.body()), (Some(b"1".as_slice()), b"body".as_slice()));
    }

    #[test]
    fn a_body_in_chunks_is_put_together() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, 0\r\nworld\r\n0\r\nT: x\r\n\r\n";
        let mut scratch = b"of before".to_vec();
        assert_eq!(HttpMessage::read(bytes, &mut scratch).body(), b"hello, 0\r\nworld");
    }

    #[test]
    fn what_is_cut_off_is_no_reason_to_fail() {
        let cases: [(&[u8], &[u8]); 4] = [
            (b"", b""),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", b"hel"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFF\r\nhel", b"hel"),
            (b"HTTP/1.1 200 OK\nA: b\n\nbody", b"body"),
        ];
        for (bytes, body) in cases {
            assert_eq!(HttpMessage::read(bytes, &mut Vec::new()).body(), body, "{bytes:?}");
        }
    }

    #[test]
    fn a_packed_body_is_known_as_such() {
        let codings = |fields: &str| {
            let (bytes, mut scratch) = (format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), Vec::new());
            let message = HttpMessage::read(bytes.as_bytes(), &mut scratch);
            message.codings().map(|coding| String::from_utf8_lossy(coding).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(codings("Content-Encoding: gzip\r\n"), ["gzip"]);
        assert_eq!(codings("content-encoding: Identity, a ,\r\nContent-Encoding: b\r\n"), ["a", "b"]);
        assert!(codings("Content-Encoding: identity\r\n").is_empty() && codings("").is_empty());
    }
}
