//! Header fields that requests and responses share.

use httparse::Header;

use super::Malformed;

/// Whether a connection takes another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// It does (RFC 9112 section 9.3).
    Stays,
    /// It is closed after this response.
    Closes,
}

/// The values of all fields with this name. `name` must be lower case; the fields may use any case.
pub(crate) fn values<'f, 'a>(
    fields: &'f [Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> + use<'f, 'a> {
    fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

/// Whether `Connection` lists a word.
fn connection_lists(fields: &[Header<'_>], word: &str) -> bool {
    values(fields, "connection")
        .flat_map(|value| value.split(|&byte| byte == b','))
        .any(|element| element.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether a message of this minor version leaves the connection open (RFC 9112 section 9.3).
pub(crate) fn persistence(fields: &[Header<'_>], version: Option<u8>) -> Persistence {
    let stays = !connection_lists(fields, "close") && (version == Some(1) || connection_lists(fields, "keep-alive"));
    if stays { Persistence::Stays } else { Persistence::Closes }
}

/// Whether the last transfer coding is chunked; absent if there is none (RFC 9112 section 6.1).
pub(super) fn is_chunked(fields: &[Header<'_>]) -> Option<bool> {
    let coding = values(fields, "transfer-encoding").last()?;
    let last = coding.rsplit(|&byte| byte == b',').next().unwrap_or_default();
    Some(last.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// The content length. A list that repeats one number means that number (RFC 9110 section 8.6).
pub(super) fn content_length(fields: &[Header<'_>]) -> Result<Option<u64>, Malformed> {
    let mut lengths = values(fields, "content-length").flat_map(|list| list.split(|&byte| byte == b',')).map(length);
    let Some(first) = lengths.next() else { return Ok(None) };
    match first {
        Some(length) if lengths.all(|other| other == first) => Ok(Some(length)),
        _ => Err(Malformed::ContentLength),
    }
}

/// Accepts digits only: signs, inner spaces and overflow are rejected.
fn length(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}
