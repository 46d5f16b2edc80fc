//! Writes a run in several formats: text for people, JSON and CSV for programs, a single HTML file for colleagues.
//!
//! This crate selects and formats the content of a [`Run`] and computes no statistics. It does not know how a run was made, and
//! reads no clock and no file. All text from hosts (names, addresses, notes, errors) is treated as hostile.

mod counter;
mod document;
pub mod formats;
mod plot;
mod recording;
pub mod sanitize;
mod words;

use std::io;

use fathom_model::Run;
pub use formats::{FORMATS, find_format, write_history_html, write_history_text};
pub use recording::{Chart, ChartLine, HostHistory, SeenFinding};

/// An output format.
pub trait Format: Sync {
    /// The name on the command line, such as `html`.
    fn name(&self) -> &'static str;

    /// The file name extension without the dot.
    fn extension(&self) -> &'static str {
        self.name()
    }

    /// Writes the whole run.
    ///
    /// # Errors
    /// Returns an error if `out` cannot be written, for example because of a closed pipe.
    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()>;
}
