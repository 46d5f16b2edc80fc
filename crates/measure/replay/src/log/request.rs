//! The request of a line, as bytes that can be sent.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use fathom_http::h1::RequestHead;
use fathom_model::units::Nanos;

use super::{
    counts::LineFate,
    time::{LoggedTime, any_duration, duration},
    values::{Field, LoggedValues},
};
use crate::{counts::AnswerFate, exchange::LoggedAnswer};

/// What is done with requests whose body is not in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodiesNotLogged {
    /// They are counted, and not given.
    LeaveOut,
    /// They are given with an empty body.
    Empty,
}

/// The request of a line with what else the line says.
#[derive(Debug)]
pub(super) struct LoggedRequest {
    /// Its head and its body.
    pub(super) bytes: Vec<u8>,
    pub(super) head_length: usize,
    /// The time at which it began.
    pub(super) time: LoggedTime,
    /// A digest of all that tells clients apart; absent if nothing does.
    pub(super) client: Option<u64>,
    pub(super) answer_fate: AnswerFate,
    pub(super) answer: Option<LoggedAnswer>,
}

/// Methods whose requests have a body, even if it is an empty one (RFC 9110 section 8.6).
const WITH_BODY: [&[u8]; 3] = [b"POST", b"PUT", b"PATCH"];
/// What servers log if the client got no answer: nginx for connections that either side closed before, Envoy and Caddy.
const NO_ANSWER: [u16; 3] = [499, 444, 0];

/// Builds the request of a line.
///
/// # Errors
/// What became of the line if it has no request that can be sent.
pub(super) fn build(values: &LoggedValues<'_>, bodies: BodiesNotLogged) -> Result<LoggedRequest, LineFate> {
    let took = took(values);
    let time = begin(values, took).ok_or(LineFate::NoTime)?;
    let (method, target) = line(values)?;
    if method == b"CONNECT" {
        return Err(LineFate::Tunnel);
    }
    let status = values.number(Field::Status);
    if status == Some(101) {
        return Err(LineFate::Upgrade);
    }
    let (host, target) = origin(&target, values.get(Field::Host));
    let body = body(values, method, bodies)?;
    let mut bytes = Vec::with_capacity(256);
    let mut put = |pieces: &[&[u8]]| pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    put(&[method, b" ", target, b" HTTP/1.1\r\n"]);
    let fields = values.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_ref()));
    for (name, value) in host.map(|host| (&b"Host"[..], host)).into_iter().chain(fields) {
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            return Err(LineFate::Malformed);
        }
        put(&[name, b": ", value, b"\r\n"]);
    }
    if !body.is_empty() || WITH_BODY.contains(&method) {
        put(&[b"Content-Length: ", body.len().to_string().as_bytes(), b"\r\n"]);
    }
    put(&[b"\r\n"]);
    let head_length = bytes.len();
    if !matches!(RequestHead::parse(&bytes), Ok(Some(head)) if head.length == head_length) {
        return Err(LineFate::Malformed);
    }
    bytes.extend_from_slice(body);
    let answer_fate = match status {
        None => AnswerFate::Absent,
        Some(status) if NO_ANSWER.contains(&status) => AnswerFate::Absent,
        Some(_) => AnswerFate::Logged,
    };
    let answer = status.filter(|_| answer_fate == AnswerFate::Logged).map(|status| LoggedAnswer {
        status,
        content_bytes: values.number(Field::AnswerBytes),
        took,
    });
    Ok(LoggedRequest { bytes, head_length, time, client: client(values), answer_fate, answer })
}

/// Whether bytes are some that a line of a request may have.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| !byte.is_ascii_control())
}

/// The method and the target.
fn line<'v>(values: &'v LoggedValues<'_>) -> Result<(&'v [u8], Cow<'v, [u8]>), LineFate> {
    if let (Some(method), Some(target)) = (values.get(Field::Method), values.get(Field::Target)) {
        let query = values.get(Field::Query).filter(|_| !target.contains(&b'?'));
        let whole = query.map_or(Cow::Borrowed(target), |query| Cow::Owned([target, b"?", query].concat()));
        return if is_target(&whole) { Ok((method, whole)) } else { Err(LineFate::Malformed) };
    }
    let line = values.get(Field::RequestLine).ok_or(LineFate::NoRequest)?;
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next().unwrap_or_default(), words.next(), words.next());
    match target {
        // Envoy writes it so of a connection on which nothing came.
        Some(b"-") if method == b"-" => Err(LineFate::NoRequest),
        // The begin of HTTP/2 (RFC 9113 section 3.4), which a server without it takes for a request.
        Some(b"*") if method == b"PRI" => Err(LineFate::OtherProtocol),
        Some(target) if is_target(target) && words.next().is_none() && version.is_none_or(is_version) => {
            Ok((method, Cow::Borrowed(target)))
        }
        _ if is_text(line) && line.is_ascii() => Err(LineFate::Malformed),
        _ if method.first().is_some_and(u8::is_ascii_uppercase) && version.is_some() => Err(LineFate::Malformed),
        _ => Err(LineFate::OtherProtocol),
    }
}

fn is_version(version: &[u8]) -> bool {
    version.starts_with(b"HTTP/")
}

fn is_target(target: &[u8]) -> bool {
    !target.is_empty() && is_text(target) && !target.contains(&b' ')
}

/// The host and the target as a server gets it (RFC 9112 section 3.2.1), of one that may be a whole URL.
fn origin<'v>(target: &'v [u8], host: Option<&'v [u8]>) -> (Option<&'v [u8]>, &'v [u8]) {
    let whole = [&b"http://"[..], b"https://"].iter().find_map(|scheme| target.strip_prefix(*scheme));
    let Some(rest) = whole else { return (host, target) };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    (Some(authority), if path.first() == Some(&b'/') { path } else { b"/" })
}

/// The body, if all of it is known.
fn body<'v>(values: &'v LoggedValues<'_>, method: &[u8], bodies: BodiesNotLogged) -> Result<&'v [u8], LineFate> {
    let length: Option<u64> = values.number(Field::BodyBytes);
    let expects_some = WITH_BODY.contains(&method);
    match (values.get(Field::Body), length) {
        (Some(body), length) if length.is_none_or(|length| length == body.len() as u64) => Ok(body),
        (None, Some(0)) => Ok(&[]),
        (None, None) if !expects_some => Ok(&[]),
        _ if bodies == BodiesNotLogged::Empty => Ok(&[]),
        _ => Err(LineFate::BodyNotLogged),
    }
}

fn took(values: &LoggedValues<'_>) -> Option<Nanos> {
    let of = |field, unit| values.get(field).and_then(|text| duration(text, unit));
    of(Field::Seconds, Nanos::from_secs(1))
        .or_else(|| of(Field::Millis, Nanos::from_millis(1)))
        .or_else(|| of(Field::Micros, Nanos::from_micros(1)))
        .or_else(|| of(Field::Nanos, Nanos(1)))
        .or_else(|| values.get(Field::Duration).and_then(any_duration))
}

/// When a request began: the most exact of its times, less the time that it took if that is one of the end.
fn begin(values: &LoggedValues<'_>, took: Option<Nanos>) -> Option<LoggedTime> {
    let times = [Field::Begin, Field::End, Field::Time].map(|field| {
        let time = LoggedTime::parse(values.get(field)?)?;
        Some((field, time))
    });
    let (field, time) = times.into_iter().flatten().min_by_key(|(_, time)| time.resolution)?;
    let Some(took) = took.filter(|_| field == Field::End) else { return Some(time) };
    // The end was within a step of the time: the middle of it says the step of the begin best.
    let LoggedTime { at, resolution } = time;
    let begin = (at + resolution / 2).since(took);
    Some(LoggedTime { at: Nanos(begin.0 - begin.0 % resolution.0), resolution })
}

/// A digest of all that tells a client and its connections from others.
fn client(values: &LoggedValues<'_>) -> Option<u64> {
    let forwarded = values.get(Field::Forwarded).and_then(|list| list.split(|byte| *byte == b',').next());
    let agent = values.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("user-agent"));
    let all =
        (values.get(Field::Client), forwarded, values.get(Field::Connection), agent.map(|(_, value)| value.as_ref()));
    let mut hasher = DefaultHasher::new();
    all.hash(&mut hasher);
    (all != (None, None, None, None)).then(|| hasher.finish())
}
