//! What other tools recorded becomes a scenario: HAR, curl command lines, plans of JMeter.
//!
//! A reader per format makes a [`story::Story`], [`write`](mod@write) makes text of it. What has no place in a scenario is told as a
//! [`story::Note`] and never guessed. Knows no files: it is given bytes.

pub mod curl;
mod encode;
mod error;
pub mod har;
pub mod jmx;
pub mod story;

pub use error::Error;

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

/// Whether requests for what a page only shows are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Assets {
    /// All requests are.
    #[default]
    Kept,
    /// Pictures, style sheets, scripts, fonts and media are left out.
    LeftOut,
}
