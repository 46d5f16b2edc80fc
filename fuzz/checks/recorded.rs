//! What must hold for every recording, whatever browsers ask and servers answer.
//!
//! Shared by the fuzz target and by the test of `record` that runs the corpus. The exchanges of an input are divided by a line `====`. Each has
//! four parts with empty lines between them: method, URL and fields; the body; status and fields; the body of the answer.

use std::sync::Arc;

use fathom_import::{RecordingFilter, har};
use fathom_record::{Direction, OpenExchange, Recording, RequestHead, Verification};
use hyper::{
    HeaderMap, Version,
    header::{HeaderName, HeaderValue},
};

/// The log of every recording can be imported, and every request has one place in it.
pub(crate) fn recorded(bytes: &[u8]) {
    let recording = Arc::new(Recording::default());
    let exchanges = divided(bytes, b"\n====\n");
    let n = exchanges.iter().filter_map(|exchange| record(&recording, exchange)).count() as u64;
    let counts = recording.counts();
    assert_eq!((counts.n_requests + counts.n_failed, counts.n_unrecorded), (n, 0));
    let log = recording.har(Verification::Checked);
    let imported = har::read(&log, &RecordingFilter::default());
    assert!(imported.is_ok(), "{imported:?}: {log}");
}

/// Records one exchange, if it is one that passes through a proxy.
fn record(recording: &Arc<Recording>, exchange: &[u8]) -> Option<()> {
    let parts = divided(exchange, b"\n\n");
    let [head, rest @ ..] = parts.as_slice() else { return None };
    let (first, headers) = head_of(head)?;
    let (method, url) = first.split_once(' ')?;
    let url: hyper::Uri = url.parse().ok()?;
    url.authority()?;
    let head = RequestHead { method: method.parse().ok()?, url, version: Version::HTTP_11, headers };
    let exchange = OpenExchange::begin(recording, head);
    if let [body, ..] = rest {
        exchange.received(Direction::Request, body);
        exchange.ended(Direction::Request);
    }
    match rest {
        [_, head, body @ ..] if let Some((status, headers)) = head_of(head) => {
            exchange.answered(status.parse().ok().unwrap_or_default(), Version::HTTP_2, &headers);
            if let [part, ..] = body {
                exchange.received(Direction::Answer, part);
            }
            exchange.ended(Direction::Answer);
        }
        _ => exchange.failed("nobody is there"),
    }
    Some(())
}

/// The first line, and the fields behind it.
fn head_of(head: &[u8]) -> Option<(&str, HeaderMap)> {
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = str::from_utf8(lines.next()?).ok()?;
    let field = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?;
        Some((HeaderName::from_bytes(&line[..at]).ok()?, value))
    };
    // A server of HTTP takes fewer fields, and a map has a bound.
    Some((first, lines.filter_map(field).take(256).collect()))
}

fn divided<'b>(bytes: &'b [u8], by: &[u8]) -> Vec<&'b [u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(by.len()).position(|window| window == by) {
        parts.push(&rest[..at]);
        rest = &rest[at + by.len()..];
    }
    parts.push(rest);
    parts
}
