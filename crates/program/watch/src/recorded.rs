//! Opens a file of samples by its beginning.

use std::io::{self, BufRead, Read as _};

use crate::{
    recording::Replay,
    sadf::SadfReplay,
    stream::{RecordingError, SampleStream},
};

/// How a file of `sadf -j` begins, apart from white space.
const SADF_BEGIN: &[u8] = b"{\"sysstat\":";
/// The bytes that are enough to tell the two formats apart.
const BEGIN_MAX: u64 = 256;

/// Opens a recording of `fathom watch`, or a file that `sadf -j` wrote.
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
