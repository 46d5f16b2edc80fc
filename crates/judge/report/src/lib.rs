//! A run as bytes: text for people, JSON and CSV for programs, one HTML file for colleagues.
//!
//! It picks and formats what a [`Run`] holds and computes no statistic. It does not know how a run came about, and it reads
//! no clock and no file. Everything that a host said (names, addresses, notes, errors) is taken for hostile text.

mod counter;
mod document;
pub mod formats;
mod plot;
pub mod sanitize;
mod words;

use std::io;

use fathom_model::Run;
pub use formats::{FORMATS, named};

/// One way of writing a run.
pub trait Format: Sync {
    /// The word on the command line: `html`.
    fn name(&self) -> &'static str;

    /// The end of a file's name, without the dot.
    fn extension(&self) -> &'static str {
        self.name()
    }

    /// Writes the whole run.
    ///
    /// # Errors
    /// When `out` takes no more, such as a closed pipe.
    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()>;
}
