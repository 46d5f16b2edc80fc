//! What must hold for every file that claims to be a capture.
//!
//! Shared by the fuzz target and by the test of `packet` that runs the corpus.

use fathom_packet::craft::read_capture;

/// Either it is refused, or each of its frames can be sent.
pub(crate) fn capture(bytes: &[u8]) {
    match read_capture(bytes, 1514) {
        Ok(frames) => {
            assert!(!frames.is_empty());
            assert!(frames.iter().all(|frame| (60..=1518).contains(&frame.len())));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
