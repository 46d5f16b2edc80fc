//! A socket for sources without a file: opened at the first sample, and only on the running system.

use std::{io, path::Path};

use fathom_sys::Error;

/// A socket that stays in the network namespace of the thread that opens it.
pub(super) struct Socket<T> {
    open: fn() -> Result<T, Error>,
    opened: Option<T>,
}

impl<T> Socket<T> {
    pub(super) const fn new(open: fn() -> Result<T, Error>) -> Self {
        Self { open, opened: None }
    }

    /// Returns the socket; `None` under a root other than that of the running system.
    pub(super) fn below(&mut self, root: &Path) -> io::Result<Option<&mut T>> {
        if root != Path::new("/") {
            return Ok(None);
        }
        let opened = match &mut self.opened {
            Some(opened) => opened,
            none => none.insert((self.open)().map_err(cause)?),
        };
        Ok(Some(opened))
    }
}

/// Returns why the kernel did not answer.
pub(super) fn cause(error: Error) -> io::Error {
    error.source
}
