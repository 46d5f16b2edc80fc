//! Converts the recordings of other tools to scenarios: HAR, curl command lines, plans of JMeter.
//!
//! A reader per format builds an [`import_tree::ImportTree`], [`write`](mod@write) turns it into text. Parts that a scenario
//! cannot express are reported as [`import_tree::ImportNote`] and never guessed. This crate knows no files: it is given bytes.

pub mod curl;
mod encode;
mod error;
pub mod har;
pub mod import_tree;
pub mod jmx;
pub mod write;

pub use self::{error::Error, write::ImportResult};

/// The largest accepted input: a recording of a day fits, and a larger one would fill the memory of a machine.
pub const SIZE_MAX: usize = 64 << 20;

/// A supported format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An HTTP archive, version 1.2, as browsers write it.
    Har,
    /// A test plan of JMeter.
    Jmx,
    /// Command lines of curl.
    Curl,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Har, Self::Jmx, Self::Curl];

    /// The word on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Har => "har",
            Self::Jmx => "jmx",
            Self::Curl => "curl",
        }
    }

    /// Recognizes the format by the beginning of a file: JSON, XML or words.
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

/// The options of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The format; `None` if the input shows it.
    pub format: Option<Format>,
    /// Whether page assets are kept.
    pub assets: Assets,
}

/// Reads one input and writes a scenario; the name is that of the input, for a comment.
///
/// # Errors
/// The input is too large, not text, of an unknown format, or not valid in its format.
pub fn import(bytes: &[u8], wanted: ImportOptions, name: &str) -> Result<ImportResult, Error> {
    if bytes.len() > SIZE_MAX {
        return Err(Error::TooLarge { size: bytes.len() });
    }
    let text = str::from_utf8(bytes).map_err(|error| Error::NotText { offset: error.valid_up_to() })?;
    let format = wanted.format.or_else(|| Format::of(text)).ok_or(Error::Unknown)?;
    let (mut tree, from) = match format {
        Format::Har => (har::read(text, wanted.assets)?, "a recording of a browser"),
        Format::Jmx => (jmx::read(text)?, "a test plan of JMeter"),
        Format::Curl => (curl::read(text)?, "command lines of curl"),
    };
    tree.drop_idle();
    if tree.kinds.is_empty() {
        return Err(Error::Empty { format, left: tree.notes });
    }
    write::write(&tree, &format!("Imported from {name}, {from}."))
}

/// Whether requests for resources that a page only displays are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assets {
    /// All requests are kept.
    #[default]
    Kept,
    /// Pictures, style sheets, scripts, fonts and media are left out.
    LeftOut,
}
