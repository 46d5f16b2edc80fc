//! Requests, built once before the start.

use std::{
    fmt::{self, Write as _},
    str::FromStr,
};

/// How the method affects the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The answer has a head and a body.
    Get,
    /// The answer has a head only.
    Head,
    /// The answer has a body only, as HTTP/0.9 answers its one method. It has no status and is taken for 200.
    Http09,
}

impl Method {
    /// How the answers to a method are read (RFC 9110 section 9.3.2). All methods except `HEAD` are answered like `GET`.
    #[must_use]
    pub fn of(token: &str) -> Self {
        if token == "HEAD" { Self::Head } else { Self::Get }
    }
}

/// The protocol version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/0.9: one line with `GET` and the target (RFC 1945 section 4.1).
    Http09,
    /// HTTP/1.0: the connection ends with the answer unless both sides ask otherwise.
    Http10,
    /// HTTP/1.1: the connection persists unless one side asks otherwise.
    Http11,
}

/// What a request asks for its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// To persist.
    On,
    /// To close after the answer.
    Off,
}

/// Why a request cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The method is not a token.
    #[error("`{0}` is not a method: a method has letters, digits and !#$%&'*+-.^_`|~")]
    Method(String),
    /// The method opens a tunnel or names no resource.
    #[error("the method {0} is not sent as a request of a load")]
    Tunnel(String),
    /// A line is not a header field.
    #[error("`{0}` is not a header field of the form `Name: value`")]
    Field(String),
    /// A field contradicts the body.
    #[error("`{0}` contradicts the body: it has {1} bytes and is sent in one piece")]
    Body(String, usize),
    /// The target contains a byte that a request line cannot carry.
    #[error("`{0}` is not allowed in a request line")]
    Target(String),
    /// HTTP/0.9 has one method and no fields.
    #[error("HTTP/0.9 has only GET, without fields and without a body")]
    Http09,
    /// A user name or password contains a control character.
    #[error("a user or a password has a control character in it, or is not of the form name:password")]
    User,
}

/// A validated header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderField {
    name: String,
    value: String,
}

impl HeaderField {
    /// Creates a field from one of fathom's own options.
    ///
    /// # Errors
    /// [`RequestError::Field`], if the value would break the line.
    pub fn new(name: &str, value: &str) -> Result<Self, RequestError> {
        format!("{name}: {value}").parse()
    }

    /// Whether the field has this name, ignoring case (RFC 9110 section 5.1).
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

impl fmt::Display for HeaderField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value)
    }
}

/// A field line `Name: value` (RFC 9110 section 5).
impl FromStr for HeaderField {
    type Err = RequestError;

    fn from_str(line: &str) -> Result<Self, RequestError> {
        let (name, value) = line.split_once(':').unwrap_or((line, "\0"));
        let is_sound = is_token(name) && !value.chars().any(|c| c.is_control() && c != '\t');
        let field = || Self { name: name.to_owned(), value: value.trim().to_owned() };
        is_sound.then(field).ok_or_else(|| RequestError::Field(line.to_owned()))
    }
}

/// Whether a word is a token (RFC 9110 section 5.6.2).
fn is_token(word: &str) -> bool {
    let is_of_a_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !word.is_empty() && word.bytes().all(is_of_a_token)
}

/// The parts of a request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Any token but `CONNECT`, which channels handle.
    pub method: &'a str,
    /// The path and the query, such as `/a?b=c`, or a whole URL for a proxy, or `*`.
    pub target: &'a str,
    pub version: Version,
    /// What the request asks for its connection, if not the default.
    pub keep_alive: KeepAlive,
    /// Default fields, `Host` first. A field of the same name in `fields` replaces the default here.
    pub default_fields: &'a [HeaderField],
    /// The user's fields. One without a value only removes the default of the same name.
    pub fields: &'a [HeaderField],
    /// The content after the head; its length is announced.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// Returns the bytes on the wire.
    ///
    /// The order is Host, the connection field, the other default fields, the body's length, the user's fields.
    ///
    /// # Errors
    /// The method, a field or the target is not allowed; the error names it.
    pub fn bytes(&self) -> Result<Vec<u8>, RequestError> {
        self.check()?;
        if self.version == Version::Http09 {
            let is_simple = self.method == "GET" && self.fields.is_empty() && self.body.is_empty();
            return is_simple.then(|| format!("GET {}\r\n", self.target).into_bytes()).ok_or(RequestError::Http09);
        }
        let version = if self.version == Version::Http10 { "1.0" } else { "1.1" };
        let mut text = format!("{} {} HTTP/{version}\r\n", self.method, self.target);
        let length = self.body.len().to_string();
        let field = |name: &str, value: &str| HeaderField { name: name.to_owned(), value: value.to_owned() };
        let connection = match (self.version, self.keep_alive) {
            (Version::Http11, KeepAlive::Off) => Some(field("Connection", "close")),
            (Version::Http10, KeepAlive::On) => Some(field("Connection", "Keep-Alive")),
            _ => None,
        };
        let measured = self.announces_length().then(|| field("Content-Length", &length));
        let (first, rest) = self.default_fields.split_at(self.default_fields.len().min(1));
        let ours = first.iter().chain(&connection).chain(rest).chain(&measured);
        let is_given = |name: &str| self.fields.iter().any(|own| own.is(name));
        let given = self.fields.iter().filter(|own| !own.value.is_empty());
        for field in ours.filter(|field| !is_given(&field.name)).chain(given) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{field}\r\n");
        }
        Ok([text.as_bytes(), b"\r\n", self.body].concat())
    }

    /// Whether a length is announced. Methods that usually carry content announce it even if it is empty (RFC 9110 section 8.6).
    fn announces_length(&self) -> bool {
        !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&self.method)
    }

    fn check(&self) -> Result<(), RequestError> {
        if !is_token(self.method) {
            return Err(RequestError::Method(self.method.to_owned()));
        }
        if self.method == "CONNECT" {
            return Err(RequestError::Tunnel(self.method.to_owned()));
        }
        let is_of_a_form = self.target.starts_with('/') || self.target.contains("://") || self.target == "*";
        if !is_of_a_form || !self.target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RequestError::Target(self.target.to_owned()));
        }
        let n = self.body.len();
        let is_wrong = |field: &&HeaderField| {
            let is_length = field.is("Content-Length");
            field.is("Transfer-Encoding") || (is_length && field.value.parse() != Ok(n))
        };
        match self.fields.iter().find(is_wrong) {
            Some(field) => Err(RequestError::Body(field.to_string(), n)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &str) -> Result<Vec<HeaderField>, RequestError> {
        lines.lines().map(str::parse).collect()
    }

    const GET: Request<'_> = Request {
        method: "GET",
        target: "/",
        version: Version::Http11,
        keep_alive: KeepAlive::On,
        default_fields: &[],
        fields: &[],
        body: b"",
    };

    fn text(request: Request<'_>, lines: &str) -> Result<String, RequestError> {
        let usual = fields("Host: a:80\nUser-Agent: fathom").unwrap();
        let bytes = Request { default_fields: &usual, fields: &fields(lines)?, ..request }.bytes()?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_request_says_what_it_was_told_and_no_more() {
        assert_eq!(
            text(Request { target: "/x?y", ..GET }, "Accept:  */*\nX-A: b: c"),
            Ok("GET /x?y HTTP/1.1\r\nHost: a:80\r\nUser-Agent: fathom\r\nAccept: */*\r\nX-A: b: c\r\n\r\n".to_owned())
        );
        assert_eq!(
            text(GET, "user-agent: me\nhost: b"),
            Ok("GET / HTTP/1.1\r\nuser-agent: me\r\nhost: b\r\n\r\n".to_owned())
        );
        assert_eq!(text(GET, "User-Agent:\nX:"), Ok("GET / HTTP/1.1\r\nHost: a:80\r\n\r\n".to_owned()));
    }

    #[test]
    fn what_is_said_of_the_connection_depends_on_the_version() {
        let cases = [
            (Version::Http11, KeepAlive::On, ""),
            (Version::Http11, KeepAlive::Off, "Connection: close\r\n"),
            (Version::Http10, KeepAlive::On, "Connection: Keep-Alive\r\n"),
            (Version::Http10, KeepAlive::Off, ""),
        ];
        for (version, keep_alive, said) in cases {
            let version_text = if version == Version::Http10 { "1.0" } else { "1.1" };
            let expected = format!("GET / HTTP/{version_text}\r\nHost: a:80\r\n{said}\r\n");
            assert_eq!(text(Request { version, keep_alive, ..GET }, "User-Agent:"), Ok(expected));
        }
        let own = text(Request { keep_alive: KeepAlive::Off, ..GET }, "connection: TE").unwrap();
        assert!(own.ends_with("fathom\r\nconnection: TE\r\n\r\n"), "{own}");
    }

    #[test]
    fn a_simple_request_is_a_line_with_get() {
        let simple = Request { version: Version::Http09, target: "/x?y", ..GET };
        assert_eq!(text(simple, ""), Ok("GET /x?y\r\n".to_owned()));
        let refused =
            [(simple, "A: b"), (Request { method: "HEAD", ..simple }, ""), (Request { body: b"a=1", ..simple }, "")];
        for (request, lines) in refused {
            assert_eq!(text(request, lines), Err(RequestError::Http09));
        }
    }

    #[test]
    fn a_body_is_announced_by_its_length() {
        let post = Request { method: "POST", body: b"a=1", ..GET };
        let head = "POST / HTTP/1.1\r\nHost: a:80\r\nUser-Agent: fathom\r\n";
        assert_eq!(text(post, ""), Ok(format!("{head}Content-Length: 3\r\n\r\na=1")));
        assert_eq!(text(Request { body: b"", ..post }, ""), Ok(format!("{head}Content-Length: 0\r\n\r\n")));
        assert_eq!(text(post, "content-length: 3"), Ok(format!("{head}content-length: 3\r\n\r\na=1")));
        for line in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            assert_eq!(text(post, line), Err(RequestError::Body(line.to_owned(), 3)));
        }
        assert!(text(Request { method: "PROPFIND", ..GET }, "").unwrap().starts_with("PROPFIND / HTTP/1.1\r\nHost"));
    }

    #[test]
    fn what_would_break_the_request_is_refused() {
        for line in ["Accept", ": x", "A b: c", "A: b\rC: d"] {
            assert_eq!(text(GET, line), Err(RequestError::Field(line.to_owned())));
        }
        for target in ["", "x", "/a b", "/a\r\nB: c", "/ä"] {
            assert_eq!(text(Request { target, ..GET }, ""), Err(RequestError::Target(target.to_owned())));
        }
        for method in ["", "G ET", "GET\r\n"] {
            assert_eq!(text(Request { method, ..GET }, ""), Err(RequestError::Method(method.to_owned())));
        }
        assert_eq!(text(Request { method: "CONNECT", ..GET }, ""), Err(RequestError::Tunnel("CONNECT".to_owned())));
    }
}
