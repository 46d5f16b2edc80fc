//! Why two recordings do not become a scenario.

use aho_corasick::BuildError;

/// An error of the recordings as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of them cannot be read, or the result cannot be written.
    #[error(transparent)]
    Import(#[from] fathom_import::Error),
    /// One of them has no request.
    #[error("there is no request in {name}")]
    Empty {
        /// The name of the recording.
        name: String,
    },
    /// Too few requests have a counterpart.
    #[error(
        "they are not of the same clicks: there are {n_first} requests and {n_second}, and a counterpart for only {n_aligned}"
    )]
    Different {
        /// Without those for what a page only displays, as the other counts.
        n_first: usize,
        n_second: usize,
        n_aligned: usize,
    },
    /// The values are more than one search can hold.
    #[error("the recordings have too many values that differ")]
    TooMany(#[from] BuildError),
}

impl Error {
    /// A hint at the remedy.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Import(error) => error.hint(),
            Self::Empty { .. } => None,
            Self::Different { .. } => Some("record the same clicks in the same order, twice, each in a new session"),
            Self::TooMany(_) => Some("cut the recordings into parts"),
        }
    }
}
