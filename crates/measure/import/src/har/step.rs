//! The requests of a recording with their answers.

use fathom_model::units::Nanos;
use jiff::Timestamp;

use super::super::import_tree::{ImportedRequest, RedirectHandling};

/// A request, and the requests that its redirects led to.
#[derive(Debug)]
pub struct RecordedStep {
    /// At least one; each answer but the last redirects to the next request.
    pub exchanges: Vec<RecordedExchange>,
    /// Whether it is for what a page only displays.
    pub is_asset: bool,
    pub(super) page: Option<String>,
    pub(super) pause: Option<Nanos>,
}

/// One request with its answer.
#[derive(Debug)]
pub struct RecordedExchange {
    /// Its place in the recording, for people.
    pub place: String,
    pub begin: Option<Timestamp>,
    pub request: ImportedRequest,
    pub answer: Option<RecordedAnswer>,
}

/// An answer as HTTP/1.1 would carry it, without compression and chunks.
#[derive(Debug)]
pub struct RecordedAnswer {
    pub status: u16,
    /// With the status line and the empty line at the end.
    pub head: String,
    /// Empty if it was not recorded.
    pub body: Vec<u8>,
}

impl RecordedStep {
    /// The request of the step, with what the last answer was.
    pub(super) fn into_request(self) -> ImportedRequest {
        let mut exchanges = self.exchanges.into_iter().map(|exchange| exchange.request);
        let mut request = exchanges.next().unwrap_or_default();
        for followed in exchanges {
            request.redirects = RedirectHandling::Followed;
            request.expects = followed.expects;
            request.takes = followed.takes;
            request.left_out.extend(followed.left_out);
        }
        request
    }
}
