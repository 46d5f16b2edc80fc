//! What the first line of a recorded request says.

use fathom_http::users::BodyFraming;

/// The methods that may be applied twice (RFC 9110 section 9.2.2).
const IDEMPOTENT: [&[u8]; 6] = [b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"];

/// The method and the target.
pub(super) fn line(request: &[u8]) -> (&[u8], &[u8]) {
    let line = request.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

/// Whether it may be sent once more when it is unknown whether the server has applied it.
pub(super) fn is_idempotent(request: &[u8]) -> bool {
    IDEMPOTENT.contains(&line(request).0)
}

/// Whether its answer has a body.
pub(super) fn framing(request: &[u8]) -> BodyFraming {
    if line(request).0 == b"HEAD" { BodyFraming::NoBody } else { BodyFraming::Body }
}

/// Whether its head has a field with this name, in lower case.
pub(super) fn has_field(head: &[u8], name: &str) -> bool {
    head.split(|byte| *byte == b'\n').any(|line| {
        let found = line.split(|byte| *byte == b':').next().unwrap_or_default();
        found.len() < line.len() && found.eq_ignore_ascii_case(name.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_applied_twice_is_sent_once_more() {
        assert!(is_idempotent(b"GET / HTTP/1.1\r\n\r\n") && is_idempotent(b"DELETE /a HTTP/1.1\r\n\r\n"));
        assert!(!is_idempotent(b"POST / HTTP/1.1\r\n\r\n") && !is_idempotent(b"PATCH / HTTP/1.1\r\n\r\n"));
        assert_eq!(
            (framing(b"HEAD / HTTP/1.1"), framing(b"HEADER / HTTP/1.1")),
            (BodyFraming::NoBody, BodyFraming::Body)
        );
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let head = b"GET / HTTP/1.1\r\nX-Host: a\r\nhOsT: b\r\n\r\n";
        assert!(has_field(head, "host") && has_field(head, "x-host") && !has_field(head, "hos"));
    }
}
