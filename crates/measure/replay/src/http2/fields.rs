//! Field sections (RFC 9113 section 8.3), and the heads of HTTP/1.1 that they become.

use fathom_http::h1;
use loona_hpack::Decoder;

use super::frames::Malformed;

/// The longest field section, as RFC 9113 section 6.5.2 counts it. Few bytes of HPACK can stand for many.
const SECTION_MAX: usize = 128 << 10;
/// What each field counts beside its name and value.
const FIELD_EXTRA: usize = 32;
/// The largest dynamic table; browsers use 64 KiB.
const TABLE_MAX: usize = 256 << 10;
/// Fields of a connection of HTTP/1, which HTTP/2 does not have (RFC 9113 section 8.2.2).
const OF_CONNECTION: [&[u8]; 5] = [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"];
/// Methods of which a server expects to be told the length of the content, also if there is none (RFC 9110 section 8.6).
const WITH_LENGTH: [&[u8]; 3] = [b"POST", b"PUT", b"PATCH"];

/// A name and a value.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// Unpacks the field sections of one side (RFC 7541).
pub(super) struct FieldDecoder(Decoder<'static>);

impl Default for FieldDecoder {
    fn default() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE_MAX);
        Self(decoder)
    }
}

impl FieldDecoder {
    /// Returns the fields of a section; `None` if they are too long to be kept.
    ///
    /// # Errors
    /// The section cannot be unpacked, and neither can those that follow.
    pub(super) fn decode(&mut self, block: &[u8]) -> Result<Option<Vec<Field>>, Malformed> {
        let (mut fields, mut length) = (Vec::new(), 0);
        let decoded = self.0.decode_with_cb(block, |name, value| {
            length += name.len() + value.len() + FIELD_EXTRA;
            if length <= SECTION_MAX {
                fields.push((name.into_owned(), value.into_owned()));
            }
        });
        decoded.map_err(|_| Malformed)?;
        Ok((length <= SECTION_MAX).then_some(fields))
    }
}

/// Whether a request asks for something other than an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Answer,
    /// CONNECT (RFC 9113 section 8.5).
    Tunnel,
    /// CONNECT with `:protocol`, as browsers open a `WebSocket` (RFC 8441).
    Upgrade,
}

/// What a request begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) method: Vec<u8>,
    target: Vec<u8>,
    /// The value of `:authority`, or of `host` if there is none.
    pub(super) host: Option<Vec<u8>>,
    /// Without the host.
    fields: Vec<Field>,
    content_length: Option<u64>,
    pub(super) purpose: Purpose,
}

impl RequestHead {
    /// # Errors
    /// The request is malformed (RFC 9113 section 8.3.1), or no request of HTTP/1.1 could say the same.
    pub(super) fn of(section: Vec<Field>) -> Result<Self, Malformed> {
        let (pseudo, mut fields) = divide(section)?;
        let [method, authority, path, protocol] =
            [&b":method"[..], b":authority", b":path", b":protocol"].map(|name| value_of(&pseudo, name));
        let method = method.filter(|method| method.iter().all(|byte| is_token(*byte)) && !method.is_empty());
        let method = method.ok_or(Malformed)?;
        let purpose = match (&method[..], protocol) {
            (b"CONNECT", None) => Purpose::Tunnel,
            (b"CONNECT", Some(_)) => Purpose::Upgrade,
            _ => Purpose::Answer,
        };
        let target = if purpose == Purpose::Tunnel { authority.clone() } else { path };
        let target = target.filter(|target| is_word(target)).ok_or(Malformed)?;
        let host = authority.or_else(|| value_of(&fields, b"host")).filter(|host| !host.is_empty());
        if host.as_ref().is_some_and(|host| !is_word(host)) {
            return Err(Malformed);
        }
        fields.retain(|(name, _)| name != b"host");
        let content_length = value_of(&fields, b"content-length");
        let content_length = content_length.map(|value| length(&value).ok_or(Malformed)).transpose()?;
        if fields.iter().filter(|(name, _)| name == b"content-length").count() > 1 {
            return Err(Malformed);
        }
        let head = Self { method, target, host, fields: join_cookies(fields), content_length, purpose };
        // Who reads requests of HTTP/1 may be stricter than the checks above.
        let is_readable = matches!(h1::RequestHead::parse(&head.clone().into_http1(Some(&[]), &[]).0), Ok(Some(_)));
        is_readable.then_some(head).ok_or(Malformed)
    }

    /// Whether so many bytes of content are what it says.
    pub(super) fn agrees_with(&self, n_content: usize) -> bool {
        self.content_length.is_none_or(|length| length == n_content as u64)
    }

    /// The bytes that it keeps in memory.
    pub(super) fn size(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.len() + FIELD_EXTRA).sum::<usize>();
        self.target.len() + fields
    }

    /// Returns the request as HTTP/1.1 says it, and the length of its head. Fields behind the content need chunks (RFC 9112 section 7.1.2).
    pub(super) fn into_http1(self, content: Option<&[u8]>, trailers: &[Field]) -> (Vec<u8>, usize) {
        let mut bytes = [&self.method[..], b" ", &self.target, b" HTTP/1.1\r\n"].concat();
        if let Some(host) = self.host {
            add_field(&mut bytes, b"host", &host);
        }
        let is_chunked = !trailers.is_empty();
        for (name, value) in self.fields.iter().filter(|(name, _)| !is_chunked || name != b"content-length") {
            add_field(&mut bytes, name, value);
        }
        let has_length = content.is_some() || WITH_LENGTH.contains(&&self.method[..]);
        let content = content.unwrap_or_default();
        if is_chunked {
            add_field(&mut bytes, b"transfer-encoding", b"chunked");
        } else if has_length && self.content_length.is_none() {
            add_field(&mut bytes, b"content-length", content.len().to_string().as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        let head_length = bytes.len();
        if !is_chunked {
            bytes.extend_from_slice(content);
            return (bytes, head_length);
        }
        if !content.is_empty() {
            bytes.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
            bytes.extend_from_slice(content);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            add_field(&mut bytes, name, value);
        }
        bytes.extend_from_slice(b"\r\n");
        (bytes, head_length)
    }
}

/// Returns the status of an answer, and its head as HTTP/1.1 says it.
///
/// # Errors
/// The answer is malformed.
pub(super) fn answer_head(section: Vec<Field>) -> Result<(u16, Vec<u8>), Malformed> {
    let (pseudo, fields) = divide(section)?;
    let status = value_of(&pseudo, b":status").filter(|status| status.len() == 3).ok_or(Malformed)?;
    let number = length(&status).and_then(|status| u16::try_from(status).ok()).filter(|status| *status >= 100);
    let mut head = [&b"HTTP/1.1 "[..], &status, b" \r\n"].concat();
    for (name, value) in &fields {
        add_field(&mut head, name, value);
    }
    head.extend_from_slice(b"\r\n");
    Ok((number.ok_or(Malformed)?, head))
}

/// Returns the fields behind the content.
///
/// # Errors
/// One of them cannot stand there (RFC 9113 section 8.1).
pub(super) fn trailers(section: Vec<Field>) -> Result<Vec<Field>, Malformed> {
    let (pseudo, fields) = divide(section)?;
    let is_sound = pseudo.is_empty() && fields.iter().all(|(name, _)| name != b"content-length" && name != b"host");
    is_sound.then_some(fields).ok_or(Malformed)
}

/// Divides pseudo-header fields, which come first and once each, from the others.
fn divide(mut section: Vec<Field>) -> Result<(Vec<Field>, Vec<Field>), Malformed> {
    let n_pseudo = section.iter().take_while(|(name, _)| name.first() == Some(&b':')).count();
    let fields = section.split_off(n_pseudo);
    let is_repeated = |idx: usize| section[..idx].iter().any(|(name, _)| *name == section[idx].0);
    let is_sound = !(0..section.len()).any(is_repeated) && fields.iter().all(is_field);
    is_sound.then_some((section, fields)).ok_or(Malformed)
}

/// Whether a field means the same in HTTP/1.1 (RFC 9113 section 8.2.1, RFC 9110 section 5.5).
fn is_field((name, value): &Field) -> bool {
    let is_name = !name.is_empty() && name.iter().all(|byte| is_token(*byte) && !byte.is_ascii_uppercase());
    is_name
        && !OF_CONNECTION.contains(&&name[..])
        && value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

/// RFC 9110 section 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
}

/// Whether bytes can stand in the first line, or be a host.
fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn value_of(fields: &[Field], name: &[u8]) -> Option<Vec<u8>> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
}

fn length(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Joins the fields into which HTTP/2 divides cookies (RFC 9113 section 8.2.3).
fn join_cookies(fields: Vec<Field>) -> Vec<Field> {
    let mut joined: Vec<Field> = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        let before = joined.iter_mut().find(|(known, _)| known == b"cookie").filter(|_| name == b"cookie");
        match before {
            Some((_, cookies)) => {
                cookies.extend_from_slice(b"; ");
                cookies.extend_from_slice(&value);
            }
            None => joined.push((name, value)),
        }
    }
    joined
}

fn add_field(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(fields: &[(&str, &str)]) -> Vec<Field> {
        fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    const BEGIN: [(&str, &str); 4] =
        [(":method", "POST"), (":scheme", "https"), (":authority", "a.example"), (":path", "/x?y")];

    fn http1(fields: &[(&str, &str)], content: Option<&[u8]>, behind: &[(&str, &str)]) -> String {
        let head = RequestHead::of(section(&[&BEGIN[..], fields].concat())).unwrap();
        let (bytes, head_length) = head.into_http1(content, &trailers(section(behind)).unwrap());
        assert!(bytes[..head_length].ends_with(b"\r\n\r\n"));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_request_says_the_same_in_http_1() {
        let begin = "POST /x?y HTTP/1.1\r\nhost: a.example\r\n";
        let cases = [
            (http1(&[("accept", "*/*")], None, &[]), "accept: */*\r\ncontent-length: 0\r\n\r\n"),
            (http1(&[("content-length", "2"), ("host", "b")], Some(b"hi"), &[]), "content-length: 2\r\n\r\nhi"),
            (http1(&[], Some(b"hi"), &[]), "content-length: 2\r\n\r\nhi"),
            (
                http1(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")], Some(b""), &[]),
                "cookie: a=1; b=2\r\nx: y\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                http1(&[("content-length", "2")], Some(b"hi"), &[("digest", "z")]),
                "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\ndigest: z\r\n\r\n",
            ),
        ];
        for (request, rest) in cases {
            assert_eq!(request, format!("{begin}{rest}"));
        }
        let without = RequestHead::of(section(&[(":method", "GET"), (":path", "/"), ("host", "b")])).unwrap();
        assert_eq!(without.into_http1(None, &[]).0, b"GET / HTTP/1.1\r\nhost: b\r\n\r\n");
    }

    #[test]
    fn what_http_1_cannot_say_is_refused() {
        let wrong: [&[(&str, &str)]; 12] = [
            &[(":path", "/")],
            &[(":method", "GET")],
            &[(":method", "GE T"), (":path", "/")],
            &[(":method", "GET"), (":path", "/ HTTP/1.1\r\nx: y")],
            &[(":method", "GET"), (":path", "/"), (":path", "/b")],
            &[(":method", "GET"), ("x", "y"), (":path", "/")],
            &[(":method", "GET"), (":path", "/"), ("X", "y")],
            &[(":method", "GET"), (":path", "/"), ("x", "y\r\nz: 1")],
            &[(":method", "GET"), (":path", "/"), ("transfer-encoding", "chunked")],
            &[(":method", "GET"), (":path", "/"), ("content-length", "+2")],
            &[(":method", "GET"), (":path", "/"), ("content-length", "2"), ("content-length", "2")],
            &[(":method", "GET"), (":path", "/"), (":authority", "a b")],
        ];
        for fields in wrong {
            assert_eq!(RequestHead::of(section(fields)), Err(Malformed), "{fields:?}");
        }
        assert_eq!(answer_head(section(&[(":status", "2000")])), Err(Malformed));
        assert_eq!(
            answer_head(section(&[(":status", "200"), ("a", "b")])),
            Ok((200, b"HTTP/1.1 200 \r\na: b\r\n\r\n".to_vec()))
        );
        assert_eq!(trailers(section(&[(":status", "200")])), Err(Malformed));
    }

    #[test]
    fn few_bytes_that_stand_for_many_are_not_kept() {
        // A field of 1000 bytes that is put into the table (RFC 7541 section 6.2.1), then named again a thousand times.
        let field = [&[0x40, 1, b'x', 0x7f, 0xe9, 0x06][..], &[b'y'; 1000]].concat();
        let block = [&field[..], &[0xbe; 1000]].concat();
        let mut decoder = FieldDecoder::default();
        assert_eq!(decoder.decode(&block), Ok(None));
        assert_eq!(decoder.decode(&[0xbe]).unwrap().unwrap()[0].1.len(), 1000, "the table is as the other side has it");
        assert_eq!(decoder.decode(&[0xff]), Err(Malformed));
    }
}
