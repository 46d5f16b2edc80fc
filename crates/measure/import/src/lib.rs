//! Converts the recordings of other tools to scenarios: HAR, curl command lines, plans of JMeter.
//!
//! A reader per format builds an [`import_tree::ImportTree`], [`write`](mod@write) turns it into text. Parts that a scenario
//! cannot express are reported as [`import_tree::ImportNote`] and never guessed. This crate knows no files: it is given bytes.

pub mod curl;
mod encode;
mod error;
mod format;
pub mod har;
pub mod import_tree;
pub mod jmx;
mod secrets;
pub mod write;

pub use self::{
    error::Error,
    format::{Assets, Format, RecordingFilter, SIZE_MAX},
    write::ImportResult,
};

impl Format {
    /// Looks at how a file begins: JSON, XML or words.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        match text.as_bytes().first()? {
            b'{' => Some(Self::Har),
            b'<' => Some(Self::Jmx),
            _ => curl::looks_like_it(text).then_some(Self::Curl),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The format; `None` if the input shows it.
    pub format: Option<Format>,
    /// The requests that are kept.
    pub filter: RecordingFilter,
    /// The data file that secrets are moved to; `None` leaves them in the scenario.
    pub secrets_file: Option<String>,
}

/// Reads one input and writes a scenario; the name is that of the input, for a comment.
///
/// # Errors
/// The input is too large, not text, of an unknown format, or not valid in its format.
pub fn import(bytes: &[u8], wanted: &ImportOptions, name: &str) -> Result<ImportResult, Error> {
    if bytes.len() > SIZE_MAX {
        return Err(Error::TooLarge { size: bytes.len() });
    }
    let text = str::from_utf8(bytes).map_err(|error| Error::NotText { offset: error.valid_up_to() })?;
    let format = wanted.format.or_else(|| Format::of(text)).ok_or(Error::Unknown)?;
    let (mut tree, from) = match format {
        Format::Har => (har::read(text, &wanted.filter)?, "a recording of a browser"),
        Format::Jmx => (jmx::read(text)?, "a test plan of JMeter"),
        Format::Curl => (curl::read(text)?, "command lines of curl"),
    };
    tree.drop_idle();
    if tree.kinds.is_empty() {
        return Err(Error::Empty { format, left: tree.notes });
    }
    let secrets = wanted.secrets_file.as_deref().and_then(|file| secrets::move_out(&mut tree, file));
    let written = write::write(&tree, &format!("Imported from {name}, {from}."))?;
    Ok(ImportResult { secrets, ..written })
}
