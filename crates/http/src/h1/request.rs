//! Requests, written once before the start.

use std::fmt::Write as _;

/// What is asked of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The body as well.
    Get,
    /// The head only.
    Head,
}

impl Method {
    /// The word of the request line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
        }
    }
}

/// Why a request cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A line is not a header field.
    #[error("`{0}` is not a header field of the form `Name: value`")]
    Field(String),
    /// A field would announce a body.
    #[error("`{0}` announces a body, and none is sent")]
    Body(String),
    /// The target holds what no request line can.
    #[error("`{0}` cannot stand in a request line")]
    Target(String),
}

/// A request without a body, with all that it says.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What is asked.
    pub method: Method,
    /// The path and the query, such as `/a?b=c`.
    pub target: &'a str,
    /// The value of `Host`, unless a field of its own gives it.
    pub host: &'a str,
    /// Further fields, one per line.
    pub fields: &'a str,
}

impl Request<'_> {
    /// The bytes on the wire.
    ///
    /// # Errors
    /// Names the field or the target that is not allowed.
    pub fn bytes(&self) -> Result<Vec<u8>, RequestError> {
        if !self.target.starts_with('/') || !self.target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RequestError::Target(self.target.to_owned()));
        }
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method.name(), self.target);
        let mut own = String::new();
        let mut names = Vec::new();
        for line in self.fields.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = field(line).ok_or_else(|| RequestError::Field(line.to_owned()))?;
            if ["content-length", "transfer-encoding"].contains(&name.as_str()) {
                return Err(RequestError::Body(line.to_owned()));
            }
            // Writing to a string cannot fail.
            let _ = write!(own, "{}: {value}\r\n", line[..name.len()].trim());
            names.push(name);
        }
        for (name, value) in [("Host", self.host), ("User-Agent", "fathom")] {
            if !names.contains(&name.to_ascii_lowercase()) {
                let _ = write!(text, "{name}: {value}\r\n");
            }
        }
        Ok([text.as_bytes(), own.as_bytes(), b"\r\n"].concat())
    }
}

/// The lower-case name and the value of a field line (RFC 9110 section 5).
fn field(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.split_once(':')?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let sound = !name.is_empty() && name.bytes().all(token) && !value.chars().any(|c| c.is_control() && c != '\t');
    sound.then(|| (name.to_ascii_lowercase(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(target: &str, fields: &str) -> Result<String, RequestError> {
        let request = Request { method: Method::Get, target, host: "a:80", fields };
        request.bytes().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_request_says_what_it_was_told_and_no_more() {
        assert_eq!(
            bytes("/x?y", "Accept:  */*\n\nX-A: b: c"),
            Ok("GET /x?y HTTP/1.1\r\nHost: a:80\r\nUser-Agent: fathom\r\nAccept: */*\r\nX-A: b: c\r\n\r\n".to_owned())
        );
        assert_eq!(
            bytes("/", "host: b\nuser-agent: me"),
            Ok("GET / HTTP/1.1\r\nhost: b\r\nuser-agent: me\r\n\r\n".to_owned())
        );
    }

    #[test]
    fn what_would_break_the_request_is_refused() {
        for fields in ["Accept", ": x", "A b: c", "A: b\rC: d"] {
            assert_eq!(bytes("/", fields), Err(RequestError::Field(fields.to_owned())));
        }
        assert_eq!(bytes("/", "Content-Length: 5"), Err(RequestError::Body("Content-Length: 5".to_owned())));
        for target in ["", "x", "/a b", "/a\r\nB: c", "/ä"] {
            assert_eq!(bytes(target, ""), Err(RequestError::Target(target.to_owned())));
        }
    }
}
