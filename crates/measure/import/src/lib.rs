//! What other tools recorded becomes a scenario: HAR, curl command lines, plans of JMeter.
//!
//! A reader per format makes a [`import_tree::ImportTree`], [`write`](mod@write) makes text of it. What has no place in a scenario is told as a
//! [`import_tree::ImportNote`] and never guessed. Knows no files: it is given bytes.

pub mod curl;
mod encode;
mod error;
pub mod har;
pub mod import_tree;
pub mod jmx;
pub mod write;

pub use self::{error::Error, write::ImportResult};

/// More is not read: a recording of a day fits, and what is larger would fill the memory of a machine.
pub const SIZE_MAX: usize = 64 << 20;

/// A format that is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An archive of HTTP, version 1.2, as browsers write it.
    Har,
    /// A test plan of JMeter.
    Jmx,
    /// Command lines of curl.
    Curl,
}

impl Format {
    /// All of them.
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

/// What of an input is wanted, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The format; nothing if the input shows it.
    pub format: Option<Format>,
    /// What becomes of pictures and the like.
    pub assets: Assets,
}

/// Reads one input and writes a scenario; the name is that of the input, for a comment.
///
/// # Errors
/// When it is too large, no text, of no known format, or not what its format says.
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

/// Whether requests for what a page only shows are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assets {
    /// All requests are.
    #[default]
    Kept,
    /// Pictures, style sheets, scripts, fonts and media are left out.
    LeftOut,
}
