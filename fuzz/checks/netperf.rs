//! What must hold for every control message of netperf, whoever sent it.
//!
//! Shared by the fuzz target and by the test of `interop` that runs the corpus.

use fathom_interop::netperf::wire::{ControlMessage, OmniRequest, OmniResponse, OmniResults, StreamRequest};

/// Reads a message as everything that it may be: what is taken is the same when it is sent on.
pub(crate) fn message(bytes: &[u8]) {
    let Ok(message) = ControlMessage::read(bytes) else {
        assert!(![256, 656].contains(&bytes.len()));
        return;
    };
    let format = message.format();
    assert_eq!(message.bytes(), bytes);
    assert!(message.text().len() < bytes.len());
    let request = OmniRequest::read(&message);
    assert!(request.congestion.len() < 16 && request.congestion.is_ascii());
    assert_eq!(OmniRequest::read(&request.message(format, None)), request);
    let response = OmniResponse::read(&message);
    assert_eq!(OmniResponse::read(&response.message(format)), response);
    let results = OmniResults::read(&message);
    assert!(results.seconds.is_finite() && results.cpu.busy.is_finite() && results.cpu.peak.is_finite());
    assert_eq!(OmniResults::read(&results.message(format)), results);
    let _ = StreamRequest::read(&message);
}
