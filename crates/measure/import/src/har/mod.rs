//! HTTP archives (HAR 1.2), as browsers and proxies write them.
//!
//! Entries become requests in the order in which they began, pages become transactions, and times without network traffic become
//! think times. The engine handles what a browser adds itself: `Host`, lengths, connections, cache conditions, and cookies that
//! the server set earlier in the same recording.

mod archive;
mod asset;
mod body;
mod reader;
mod recording;
mod step;
mod url;

pub use self::{
    recording::Recording,
    step::{RecordedAnswer, RecordedExchange, RecordedStep},
};
use super::{Error, RecordingFilter, import_tree::ImportTree};

/// Reads one archive as one user that repeats the recording.
///
/// # Errors
/// The text is not a HAR.
pub fn read(text: &str, filter: &RecordingFilter) -> Result<ImportTree, Error> {
    Recording::read(text, filter).map(Recording::into_tree)
}

#[cfg(test)]
mod tests;
