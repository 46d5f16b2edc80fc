//! A socket that is asked where there is no file: opened at the first sample, and only of the running system.

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

    /// The socket; nothing under a root that is not the running system's.
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

/// Why the kernel did not answer.
pub(super) fn cause(error: Error) -> io::Error {
    error.source
}
