//! Header fields that requests and responses share.

use httparse::Header;

/// Whether a connection takes another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persistence {
    /// It does (RFC 9112 section 9.3).
    Stays,
    /// It is closed after this response.
    Closes,
}

/// The values of all fields with this name. `name` must be lower case; the fields may use any case.
pub(crate) fn values<'a>(fields: &'a [Header<'a>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
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
