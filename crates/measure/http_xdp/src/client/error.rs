//! Errors of the whole client.

use fathom_engine::Error;

/// The way out of every refusal.
pub(super) const SOCKETS: &str = "--engine sockets";
/// What a client without sockets needs.
pub(super) const PRIVILEGES: &str = "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF";

/// A load that only sockets can do.
pub(super) fn refusal(why: impl Into<String>) -> Error {
    Error::Unsupported { what: why.into(), hint: Some(SOCKETS.to_owned()) }
}

/// The maps of the program could not be read or written.
pub(super) fn read_failed(cause: fathom_sys::Error) -> Error {
    Error::System { what: "read the books of the XDP program".to_owned(), cause }
}
