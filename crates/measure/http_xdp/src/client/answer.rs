//! What the bytes of an answer teach: its length, and the places by which the program knows it again.

use std::ops::Range;

use fathom_engine::Error;
use fathom_http::h1::{Framing, Head, HeadReader, Method};
use fathom_model::units::Bytes;

use super::error::refusal;
use crate::{machine::WINDOW, program::ExpectedAnswer};

/// The start of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnswerStart {
    pub(super) status: u16,
    /// What the program expects, or why it cannot follow such an answer.
    pub(super) answer: Result<ExpectedAnswer, String>,
}

impl AnswerStart {
    /// Reads the head of an answer; `None` while it is incomplete.
    pub(super) fn read(bytes: &[u8], method: Method) -> Result<Option<Self>, Error> {
        let read = HeadReader::new(method)
            .read(bytes)
            .map_err(|problem| refusal(format!("the server's answer cannot be read: {problem}")))?;
        let Some((head, head_length)) = read else { return Ok(None) };
        let (head_bytes, status) = (&bytes[..head_length], head.status);
        if let 300..400 = status {
            return Err(redirect(status, head_bytes));
        }
        if !head_bytes.starts_with(VERSION) {
            return Err(refusal("the server answers with another version than HTTP/1.1"));
        }
        let unusual = |why: String| Ok(Some(Self { status, answer: Err(why) }));
        if let 100..200 = status {
            return unusual(format!("the server sends an interim answer ({status}) before each answer"));
        }
        let body = match body_length(&head) {
            Ok(body) => body,
            Err(why) => return unusual(why.to_owned()),
        };
        if head_length > HEAD_MAX {
            return unusual(format!(
                "the head of the answer has {head_length} bytes, and at most {HEAD_MAX} fit into the first segment"
            ));
        }
        let Some(digits) = content_length(head_bytes) else {
            return unusual("the answer has no Content-Length, so its end is not known from its head".to_owned());
        };
        let whole = head_length as u64 + body;
        let length = u32::try_from(whole).ok().filter(|length| *length <= WINDOW).ok_or_else(|| {
            refusal(format!(
                "the answer has {}, and a connection without sockets takes at most the {} of its window",
                Bytes(whole),
                Bytes(WINDOW.into())
            ))
        })?;
        let place = |at: usize| u32::try_from(at).expect("a head is within an answer");
        let answer = ExpectedAnswer {
            length,
            head_length: place(head_length),
            status: *head_bytes[STATUS_AT..].first_chunk().expect("a head has a status"),
            digits_at: place(digits.start),
            digits: head_bytes[digits].to_vec(),
        };
        Ok(Some(Self { status, answer: Ok(answer) }))
    }
}

/// How every answer begins.
const VERSION: &[u8] = b"HTTP/1.1 ";
/// The longest head that is sure to fit into one segment.
const HEAD_MAX: usize = 1400;
/// Where the digits of the status are: behind `HTTP/1.1 `.
const STATUS_AT: usize = 9;

fn body_length(head: &Head) -> Result<u64, &'static str> {
    match head.framing {
        Framing::Length(length) => Ok(length),
        Framing::Chunked => Err("the answer is sent in chunks, so its length is not known from its head"),
        Framing::UntilClose => Err("the answer ends with its connection, so its length is not known from its head"),
    }
}

fn redirect(status: u16, head: &[u8]) -> Error {
    let target = value(head, "location").map(|at| String::from_utf8_lossy(&head[at]).into_owned());
    let to = target.as_ref().map(|target| format!(" to {target}")).unwrap_or_default();
    Error::Unsupported {
        what: format!("the server redirects ({status}){to}, and redirects are not followed"),
        hint: Some(
            target.map_or_else(
                || "give the URL of the page itself".to_owned(),
                |target| format!("give that URL: {target}"),
            ),
        ),
    }
}

/// Where the number of Content-Length is.
fn content_length(head: &[u8]) -> Option<Range<usize>> {
    value(head, "content-length").filter(|at| !at.is_empty() && head[at.clone()].iter().all(u8::is_ascii_digit))
}

/// Where the value of a field is; `name` in lower case.
fn value(head: &[u8], name: &str) -> Option<Range<usize>> {
    let mut start = 0;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        if let Some(colon) = line.iter().position(|byte| *byte == b':')
            && line[..colon].eq_ignore_ascii_case(name.as_bytes())
        {
            let value = &line[colon + 1..];
            let from = start + colon + 1 + (value.len() - value.trim_ascii_start().len());
            return Some(from..from + value.trim_ascii().len());
        }
        start += line.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AnswerStart, String> {
        AnswerStart::read(text.as_bytes(), Method::of("GET"))
            .map(Option::unwrap)
            .map_err(|error| format!("{error}: {}", error.hint().unwrap_or_default()))
    }

    #[test]
    fn an_answer_is_known_by_its_status_and_the_digits_of_its_length() {
        let head = "HTTP/1.1 404 Not Found\r\nServer: x\r\ncontent-length:  12 \r\n\r\n";
        let start = read(&format!("{head}hello")).unwrap();
        let ExpectedAnswer { length, head_length, status, digits_at, digits } = start.answer.unwrap();
        assert_eq!((length as usize, head_length as usize, &status), (head.len() + 12, head.len(), b"404"));
        assert_eq!((&head[digits_at as usize..][..2], digits.as_slice()), ("12", b"12".as_slice()));
        assert_eq!(AnswerStart::read(b"HTTP/1.1 200 OK\r\nContent-", Method::of("GET")).unwrap(), None);
    }

    #[test]
    fn what_user_space_has_to_follow_is_known_with_its_reason() {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 1\r\n\r\n", "y".repeat(1_400));
        for (text, reason) in [
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "in chunks"),
            ("HTTP/1.1 200 OK\r\n\r\n", "ends with its connection"),
            ("HTTP/1.1 204 No Content\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 103 Early Hints\r\n\r\n", "interim answer (103)"),
            (long.as_str(), "fit into the first segment"),
        ] {
            let why = read(text).unwrap().answer.unwrap_err();
            assert!(why.contains(reason), "{text:?}: {why}");
        }
    }

    #[test]
    fn what_the_client_cannot_do_is_refused_with_its_reason_and_the_way_out() {
        for (text, reason) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n", "at most the 64.0 KiB of its window"),
            (
                "HTTP/1.1 301 Moved\r\nLocation: http://a/b\r\nContent-Length: 0\r\n\r\n",
                "redirects (301) to http://a/b",
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", "another version"),
            ("hello, this is no HTTP\r\n\r\n", "cannot be read"),
        ] {
            let error = read(text).unwrap_err();
            let has_way_out = error.contains("--engine sockets") || error.contains("give that URL");
            assert!(error.contains(reason) && has_way_out, "{text:?}: {error}");
        }
    }
}
