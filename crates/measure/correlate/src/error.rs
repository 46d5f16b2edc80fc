//! Why two recordings do not become a scenario.

use aho_corasick::BuildError;

/// The time of an alignment grows with the square of this.
pub(crate) const REQUESTS_MAX: usize = 20_000;

/// An error of the recordings as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of them cannot be read.
    #[error("cannot read {name}")]
    Unreadable {
        /// The name of the recording.
        name: String,
        source: fathom_import::Error,
    },
    /// The result cannot be written.
    #[error(transparent)]
    Unwritten(fathom_import::Error),
    /// One of them has no request.
    #[error("there is no request in {name}")]
    Empty {
        /// The name of the recording.
        name: String,
    },
    /// One of them has more requests than can be aligned.
    #[error("there are {n} requests in {name}, and at most {REQUESTS_MAX} are aligned")]
    TooLong {
        /// The name of the recording.
        name: String,
        n: usize,
    },
    /// Too few requests have a counterpart.
    #[error(
        "they are not of the same clicks: they have {n_first} and {n_second} requests, and only {n_aligned} in common"
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
            Self::Unreadable { .. } | Self::Unwritten(_) | Self::Empty { .. } => None,
            Self::Different { .. } => Some("record the same clicks in the same order, twice, each in a new session"),
            Self::TooLong { .. } => {
                Some("--no-assets leaves out what pages only display; or cut the recordings into parts")
            }
            Self::TooMany(_) => Some("cut the recordings into parts"),
        }
    }
}
