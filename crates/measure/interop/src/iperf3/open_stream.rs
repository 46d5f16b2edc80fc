//! A stream with its socket.

use std::{fs::File, path::Path, sync::Arc};

use fathom_sys::socket::{Socket, zero_copy};

use super::{Error, Stream, StreamRole};

/// A stream with its socket.
#[derive(Debug, Clone)]
pub(crate) struct OpenStream {
    pub(crate) stream: Stream,
    pub(crate) socket: Arc<Socket>,
    /// What is sent, or where to write what arrives; memory without it.
    pub(crate) file: Option<Arc<File>>,
}

impl OpenStream {
    /// A stream whose data is that of a file, where one was asked for: the sender's is read, the receiver's written anew.
    ///
    /// # Errors
    /// The file cannot be opened.
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
