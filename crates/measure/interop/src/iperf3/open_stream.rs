//! A stream with its socket.

use std::{fs::File, path::Path, sync::Arc};

use fathom_sys::socket::{Socket, zero_copy};

use super::{Error, Stream, StreamRole};

/// A stream with its socket.
#[derive(Debug, Clone)]
pub(crate) struct OpenStream {
    pub(crate) stream: Stream,
    pub(crate) socket: Arc<Socket>,
    /// The file to send, or to write received data to; `None` for memory.
    pub(crate) file: Option<Arc<File>>,
}

impl OpenStream {
    /// Creates a stream, and opens its file if there is one: a sender reads the file, a receiver overwrites it.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn new(stream: Stream, socket: Socket, path: Option<&Path>) -> Result<Self, Error> {
        let open = |path| match stream.role {
            StreamRole::Sender => zero_copy::open_source(path),
            StreamRole::Receiver => zero_copy::open_sink(path),
        };
        let cannot = |error: fathom_sys::Error| Error::File { what: "unable to open -F file", cause: error.source };
        let file = path.map(open).transpose().map_err(cannot)?;
        Ok(Self { stream, socket: Arc::new(socket), file: file.map(Arc::new) })
    }
}
