//! The head of a request, as anybody may have sent it.

use std::mem::MaybeUninit;

use super::{
    Malformed,
    field::{content_length, is_chunked, values},
    head::Framing,
};

/// More fields than common clients send, and than common servers accept.
const FIELDS_MAX: usize = 256;

/// The parsed head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead<'a> {
    pub method: &'a str,
    /// The host that it names, in its field or in the target.
    pub host: Option<&'a [u8]>,
    /// How the end of its body is found: by count or by chunks.
    pub framing: Framing,
    /// The length of the head.
    pub length: usize,
}

impl<'a> RequestHead<'a> {
    /// Parses the head at the beginning of `bytes`, or returns `None` while it is incomplete.
    ///
    /// # Errors
    /// The head is malformed, or the end of its body cannot be known (RFC 9112 section 6.3).
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let httparse::Status::Complete(length) = request.parse_with_uninit_headers(bytes, &mut fields)? else {
            return Ok(None);
        };
        let framing = match is_chunked(request.headers) {
            Some(true) => Framing::Chunked,
            Some(false) => return Err(Malformed::Unending),
            None => Framing::Length(content_length(request.headers)?.unwrap_or(0)),
        };
        let in_target = request.path.and_then(authority).map(str::as_bytes);
        let host = in_target.or_else(|| values(request.headers, "host").next());
        Ok(Some(Self { method: request.method.unwrap_or_default(), host, framing, length }))
    }
}

/// The authority in a target that is a whole URL, as proxies get it.
fn authority(target: &str) -> Option<&str> {
    // Nearly all targets are paths, which need no search.
    if target.starts_with('/') {
        return None;
    }
    let (_, rest) =
        target.split_once("://").filter(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphabetic()))?;
    // The user and password of a URL are secret.
    rest.split(['/', '?']).next().map(|authority| authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<RequestHead<'_>>, Malformed> {
        RequestHead::parse(text.as_bytes())
    }

    #[test]
    fn the_end_of_a_body_is_found_by_count_or_by_chunks() {
        let cases = [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Framing::Length(0)),
            ("POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello", Framing::Length(5)),
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n", Framing::Chunked),
        ];
        for (text, framing) in cases {
            let head = parse(text).unwrap().unwrap();
            assert_eq!((head.framing, head.length), (framing, text.find("\r\n\r\n").unwrap() + 4), "{text}");
            assert_eq!(parse(&text[..head.length - 1]), Ok(None), "{text}");
        }
    }

    #[test]
    fn a_length_that_is_none_is_refused() {
        for (field, fault) in [
            ("Content-Length: 5, 6", Malformed::ContentLength),
            ("Content-Length: -1", Malformed::ContentLength),
            ("Transfer-Encoding: gzip", Malformed::Unending),
        ] {
            assert_eq!(parse(&format!("POST / HTTP/1.1\r\n{field}\r\n\r\n")).unwrap_err(), fault);
        }
        assert!(parse("SSH-2.0-OpenSSH_9\r\n\r\n").is_err());
    }

    #[test]
    fn the_host_is_that_of_the_target_or_of_its_field() {
        let host = |text: &str| parse(text).unwrap().unwrap().host.map(<[u8]>::to_vec);
        assert_eq!(host("GET / HTTP/1.1\r\nhost: a:80\r\n\r\n"), Some(b"a:80".to_vec()));
        assert_eq!(host("GET http://b/c?d HTTP/1.1\r\nhost: a:80\r\n\r\n"), Some(b"b".to_vec()));
        assert_eq!(host("GET http://bob:secret@b/c@d HTTP/1.1\r\n\r\n"), Some(b"b".to_vec()), "users are secret");
        assert_eq!(host("GET / HTTP/1.0\r\n\r\n"), None);
    }
}
