//! Samples from a file, whatever wrote it.

use std::fmt;

use fathom_model::Environment;

use crate::samples::Samples;

/// Why a recording cannot be read, and where.
#[derive(Debug)]
pub struct RecordingError {
    place: String,
    what: String,
}

impl RecordingError {
    /// Creates an error; `place` is such as `line 7`.
    pub(crate) fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for RecordingError {}

/// Samples of a host in the order of time.
pub trait SampleStream {
    /// The name of the host.
    fn host(&self) -> &str;

    /// Its properties, as far as the file has them.
    fn environment(&self) -> &Environment;

    /// What of the newest sample could not be read, a sentence each.
    fn losses(&self) -> Vec<String>;

    /// Adds the next sample, and returns its time for people; `None` at the end.
    ///
    /// # Errors
    /// If the file is damaged.
    fn next(&mut self, samples: &mut Samples) -> Result<Option<String>, RecordingError>;
}
