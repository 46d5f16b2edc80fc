//! Samples from a file, whatever wrote it.

use std::{
    fmt,
    io::{self, BufRead, Read as _},
};

use fathom_model::Environment;

use crate::{recording::Replay, sadf::SadfReplay, samples::Samples};

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

    /// Adds the next sample, and returns its time for people; `None` at the end.
    ///
    /// # Errors
    /// If the file is damaged.
    fn next(&mut self, samples: &mut Samples) -> Result<Option<String>, RecordingError>;
}

/// How a file of `sadf -j` begins, apart from white space.
const SADF_BEGIN: &[u8] = b"{\"sysstat\":";
/// The bytes that are enough to tell the two formats apart.
const BEGIN_MAX: u64 = 256;

/// Opens a recording of `fathom watch --record`, or a file that `sadf -j` wrote.
///
/// # Errors
/// If it is neither, or cannot be read.
pub fn recording<'a>(mut input: impl BufRead + 'a) -> Result<Box<dyn SampleStream + 'a>, RecordingError> {
    let mut begin = Vec::new();
    let read = input.by_ref().take(BEGIN_MAX).read_to_end(&mut begin);
    read.map_err(|error| RecordingError::new("line 1", error.to_string()))?;
    let bare: Vec<u8> = begin.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let is_sadf = bare.starts_with(SADF_BEGIN);
    let whole = io::Cursor::new(begin).chain(input);
    Ok(if is_sadf { Box::new(SadfReplay::new(whole)?) } else { Box::new(Replay::new(whole)?) })
}
