//! The variables of a format, by nginx's names, with a few of our own for what nginx does not write.

use super::values::Field;

/// What a variable of a format is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Variable {
    /// A field, with the rank of this variable among those of the field.
    Field(Field, u8),
    /// A field of the head of the request.
    Header(String),
    /// The same, which also names the client.
    Forwarded(String),
    /// Of no use for the request.
    Other,
}

/// Names with what they say; of those with the same meaning, the first is the closest to what was sent.
const FIELDS: &[(&str, Field)] = &[
    ("request", Field::RequestLine),
    ("request_method", Field::Method),
    ("request_uri", Field::Target),
    ("uri", Field::Target),
    ("document_uri", Field::Target),
    ("args", Field::Query),
    ("query_string", Field::Query),
    ("http_host", Field::Host),
    ("host", Field::Host),
    ("server_name", Field::Host),
    ("status", Field::Status),
    ("body_bytes_sent", Field::AnswerBytes),
    ("start_time", Field::Begin),
    ("msec", Field::End),
    ("time_iso8601", Field::End),
    ("time_local", Field::End),
    ("request_time", Field::Seconds),
    ("request_time_ms", Field::Millis),
    ("request_time_us", Field::Micros),
    ("remote_addr", Field::Client),
    ("forwarded_for", Field::Forwarded),
    ("remote_port", Field::Connection),
    ("connection", Field::Connection),
    ("request_body", Field::Body),
    ("request_body_bytes", Field::BodyBytes),
    ("content_length", Field::BodyBytes),
    ("http_content_length", Field::BodyBytes),
];

impl Variable {
    pub(super) fn named(name: &str) -> Self {
        if let Some((rank, (_, field))) = (0..).zip(FIELDS).find(|(_, (known, _))| *known == name) {
            return Self::Field(*field, rank);
        }
        match name.strip_prefix("http_").or_else(|| (name == "content_type").then_some(name)) {
            Some(header) if header == "x_forwarded_for" => Self::Forwarded(header_name(header)),
            Some(header) if is_of_request(header) => Self::Header(header_name(header)),
            _ => Self::Other,
        }
    }

    pub(super) fn is_time(&self) -> bool {
        matches!(self, Self::Field(Field::Begin | Field::End | Field::Time, _))
    }

    pub(super) fn is_request(&self) -> bool {
        matches!(self, Self::Field(Field::RequestLine | Field::Target, _))
    }
}

/// The name of a field of a head, from nginx's name for it: `user_agent` becomes `User-Agent`.
fn header_name(name: &str) -> String {
    let word = |word: &str| match word.split_at_checked(1) {
        Some((first, rest)) => first.to_ascii_uppercase() + rest,
        None => String::new(),
    };
    name.split('_').map(word).collect::<Vec<_>>().join("-")
}

/// Whether a field of a head belongs to the request, and not to the connection on which it came or to the framing of its body,
/// by its name in small letters.
pub(super) fn is_of_request(name: &str) -> bool {
    const OTHERS: [&str; 11] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    !OTHERS.iter().any(|other| other.eq_ignore_ascii_case(&name.replace('_', "-")))
}
