//! The values of a line, by what they say of its request.

use std::borrow::Cow;

/// What a value says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// The first line of the request.
    RequestLine,
    Method,
    Target,
    /// The part of the target after the question mark, beside a target without it.
    Query,
    Host,
    Status,
    /// The bytes of the answer's content.
    AnswerBytes,
    /// The time at which the request began.
    Begin,
    /// The time at which the line was written: after the answer.
    End,
    /// One of both.
    Time,
    Seconds,
    Millis,
    Micros,
    Nanos,
    /// How long the request took, in a unit that follows from its looks.
    Duration,
    Client,
    /// The client, as a proxy before the server told it; the first of a list.
    Forwarded,
    /// What tells the connections of a client apart: its port, or their number.
    Connection,
    Body,
    BodyBytes,
}

/// The number of fields.
const N_FIELDS: usize = Field::BodyBytes as usize + 1;

impl Field {
    /// Whether a value has the form of the field, by which a text is recognised as being in a format.
    pub(super) fn accepts(self, value: &[u8]) -> bool {
        let is_number = || value.iter().all(u8::is_ascii_digit);
        match self {
            Self::Status => is_absent(value) || is_number() && matches!(value.len(), 1 | 3),
            Self::AnswerBytes | Self::BodyBytes | Self::Millis | Self::Micros | Self::Nanos => {
                is_absent(value) || is_number()
            }
            // nginx writes milliseconds always; a number without a point is no time of nginx.
            Self::Seconds => {
                is_absent(value)
                    || value.contains(&b'.') && value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
            }
            Self::Client => !is_absent(value) && !value.contains(&b' '),
            Self::Host | Self::Connection => !value.contains(&b' '),
            _ => true,
        }
    }
}

/// Whether a server wrote that it has no value.
pub(super) fn is_absent(value: &[u8]) -> bool {
    matches!(value, b"" | b"-")
}

/// The values of a line.
#[derive(Debug, Default)]
pub(super) struct LoggedValues<'a> {
    /// Each with its rank: of several values for a field, the one with the lowest is taken.
    fields: [Option<(u8, Cow<'a, [u8]>)>; N_FIELDS],
    /// Further fields of the head of the request.
    pub(super) headers: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
    has_request: bool,
}

impl<'a> LoggedValues<'a> {
    pub(super) fn set(&mut self, field: Field, rank: u8, value: Cow<'a, [u8]>) {
        self.has_request |= matches!(field, Field::RequestLine | Field::Target);
        let place = &mut self.fields[field as usize];
        if !is_absent(&value) && place.as_ref().is_none_or(|(known, _)| rank < *known) {
            *place = Some((rank, value));
        }
    }

    pub(super) fn add_header(&mut self, name: Cow<'a, str>, value: Cow<'a, [u8]>) {
        // Caddy and Traefik write this in the place of what is secret.
        if !is_absent(&value) && value.as_ref() != b"REDACTED" {
            self.headers.push((name, value));
        }
    }

    pub(super) fn get(&self, field: Field) -> Option<&[u8]> {
        self.fields[field as usize].as_ref().map(|(_, value)| value.as_ref())
    }

    /// The number of a field, if it is one.
    pub(super) fn number<T: std::str::FromStr>(&self, field: Field) -> Option<T> {
        std::str::from_utf8(self.get(field)?).ok()?.parse().ok()
    }

    /// Whether the line has a place for a request, and be it empty.
    pub(super) fn is_of_request(&self) -> bool {
        self.has_request
    }
}
