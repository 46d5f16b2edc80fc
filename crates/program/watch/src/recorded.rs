//! Opens a file of samples by its beginning.

use std::io::{self, BufRead, Read as _};

use crate::{
    recording::Replay,
    sadf::SadfReplay,
    stream::{RecordingError, SampleStream},
};

/// How a file of `sadf -j` begins, apart from white space.
const SADF_BEGIN: &[u8] = b"{\"sysstat\":";
/// How a file of sadc begins, whatever the order of its bytes (`SYSSTAT_MAGIC` of sysstat).
const SADC_BEGINS: [[u8; 2]; 2] = [[0x96, 0xd5], [0xd5, 0x96]];
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
    if let Some(why) = foreign(&begin) {
        return Err(RecordingError::new("line 1", why));
    }
    let bare: Vec<u8> = begin.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let is_sadf = bare.starts_with(SADF_BEGIN);
    let whole = io::Cursor::new(begin).chain(input);
    Ok(if is_sadf { Box::new(SadfReplay::new(whole)?) } else { Box::new(Replay::new(whole)?) })
}

/// Returns what a file is that can be no recording, by its beginning.
fn foreign(begin: &[u8]) -> Option<&'static str> {
    let first = begin.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        None => Some("it is no recording of fathom watch: the file is empty"),
        Some(b'{') => None,
        _ if SADC_BEGINS.iter().any(|magic| begin.starts_with(magic)) => Some(
            "it is a file of sadc, which only sysstat reads: sadf -j FILE -- -A writes it as JSON, which is read here",
        ),
        Some(_) => Some("it is no recording of fathom watch, and no JSON of sadf -j: it does not begin with {"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_recording_is_told_what_it_is() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "the file is empty"),
            (&[0; 300], "does not begin with {"),
            (&[0x96, 0xd5, 0x75, 0x21], "sadf -j FILE -- -A"),
            (b"10:00:01 all 0.00\n", "no JSON of sadf -j"),
            (b"{\"schema\":", "it has no whole line"),
        ];
        for (file, said) in cases {
            let told = recording(file).err().unwrap().to_string();
            assert!(told.contains(said), "{told}");
        }
    }
}
