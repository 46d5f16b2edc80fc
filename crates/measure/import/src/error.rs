//! Why an input cannot be read at all.

use crate::{
    format::{Format, SIZE_MAX},
    import_tree::ImportNote,
};

/// An error of an input as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It exceeds the size limit.
    #[error("the input has {size} bytes, and at most {SIZE_MAX} are read")]
    TooLarge {
        /// In bytes.
        size: usize,
    },
    /// It is not text.
    #[error("the input is not UTF-8 text: byte {offset} does not belong there")]
    NotText {
        /// The offset of the first invalid byte.
        offset: usize,
    },
    /// Its format cannot be recognized.
    #[error("the input is neither a HAR file nor a test plan of JMeter nor a curl command line")]
    Unknown,
    /// It is not a HAR.
    #[error("not a HAR file")]
    Har(#[source] serde_json::Error),
    /// It is not XML, or XML that is not accepted.
    #[error("not a test plan of JMeter: {what} (line {line})")]
    Xml {
        /// The problem.
        what: String,
        /// Counted from 1.
        line: usize,
    },
    /// It is not a command line.
    #[error("not a command line of curl: {what} (line {line})")]
    Curl {
        /// The problem.
        what: String,
        /// Counted from 1.
        line: usize,
    },
    /// The result is not a valid scenario.
    #[error("the import produced an invalid scenario: {fault}")]
    Unwritten {
        /// The error of the scenario parser.
        fault: String,
    },
    /// It has no requests that a scenario can send.
    #[error("there is no request in the {} input that a scenario can make", format.name())]
    Empty {
        /// The format that the input was read as.
        format: Format,
        /// The parts that were left out.
        left: Vec<ImportNote>,
    },
}

impl Error {
    /// A hint at the remedy.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooLarge { .. } => Some("cut the recording into several files, and import them together"),
            Self::NotText { .. } => Some("convert it to UTF-8 first: iconv -f ISO-8859-1 -t UTF-8"),
            Self::Unknown => Some("name the format: --format har, jmx or curl"),
            Self::Curl { .. } => Some("in a browser choose \"Copy as cURL (bash)\" or \"(POSIX)\""),
            Self::Har(_) | Self::Xml { .. } | Self::Unwritten { .. } | Self::Empty { .. } => None,
        }
    }
}
