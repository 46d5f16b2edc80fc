//! Why an input cannot be read at all.

use crate::{
    format::{Format, SIZE_MAX},
    import_tree::ImportNote,
};

/// What is wrong with an input as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is larger than what is read.
    #[error("the input has {size} bytes, and at most {SIZE_MAX} are read")]
    TooLarge {
        /// How large it is.
        size: usize,
    },
    /// It is no text.
    #[error("the input is not UTF-8 text: byte {offset} does not belong there")]
    NotText {
        /// Where the first wrong byte is.
        offset: usize,
    },
    /// Nothing in it shows what it is.
    #[error("the input is neither a HAR file nor a test plan of JMeter nor a curl command line")]
    Unknown,
    /// It is no HAR.
    #[error("not a HAR file")]
    Har(#[source] serde_json::Error),
    /// It is no XML, or XML that is refused.
    #[error("not a test plan of JMeter: {what} (line {line})")]
    Xml {
        /// What is wrong.
        what: String,
        /// Where, counted from 1.
        line: usize,
    },
    /// It is no command line.
    #[error("not a command line of curl: {what} (line {line})")]
    Curl {
        /// What is wrong.
        what: String,
        /// Where, counted from 1.
        line: usize,
    },
    /// What was made of it is no scenario.
    #[error("the import produced an invalid scenario: {fault}")]
    Unwritten {
        /// What the reader of scenarios says.
        fault: String,
    },
    /// It has no requests that a scenario can make.
    #[error("there is no request in the {} input that a scenario can make", format.name())]
    Empty {
        /// What the input was read as.
        format: Format,
        /// What was left out of it.
        left: Vec<ImportNote>,
    },
}

impl Error {
    /// What a person can do about it.
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
