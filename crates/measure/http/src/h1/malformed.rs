//! What can be wrong with a message.

/// The defect of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Malformed {
    /// It does not begin with `HTTP/1.`.
    #[error("not HTTP/1")]
    Version,
    /// The status is not three digits with a reason.
    #[error("malformed status line")]
    Status,
    /// A field name or value contains a forbidden byte.
    #[error("malformed header field")]
    Field,
    /// A line does not end with a proper line end.
    #[error("malformed line end")]
    LineEnd,
    /// A proxy answers with more than 100 fields.
    #[error("more than 100 header fields")]
    TooManyFields,
    /// The head does not end within its limit.
    #[error("head longer than max-head")]
    HeadTooLong,
    /// The length is not a number, or two lengths differ.
    #[error("malformed content length")]
    ContentLength,
    /// A request has a transfer coding that does not end its body.
    #[error("transfer coding without an end")]
    Unending,
    /// The server switched protocols without being asked.
    #[error("switched protocols unasked")]
    Switched,
    /// The size of a chunk is not a hexadecimal 64-bit number on its own line.
    #[error("malformed chunk size")]
    ChunkSize,
    /// A chunk is longer than its size says.
    #[error("chunk longer than its size")]
    ChunkEnd,
    /// Bytes follow the end of the response that no request asked for.
    #[error("bytes after the end of the response")]
    Surplus,
}

impl From<httparse::Error> for Malformed {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::Version => Self::Version,
            httparse::Error::Status => Self::Status,
            httparse::Error::NewLine => Self::LineEnd,
            httparse::Error::TooManyHeaders => Self::TooManyFields,
            httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::Token => Self::Field,
        }
    }
}
