//! When a peer that says nothing is lost, and how the errors of a record tell of it.

use fathom_model::{Histogram, units::Nanos};

/// Who waits longer than this for an answer when the trial ends may not wait for a slow answer but for a lost peer …
const SILENCE: Nanos = Nanos::from_secs(1);
/// … if it is that many times the longest that others have taken: of many flows each waits for all others.
const SILENCE_FACTOR: u64 = 3;
/// What the errors say then.
pub(crate) const PEER_SILENT: &str = "recv: no answer for more than 1 s before the end";
/// Whether a wait is one for a peer that is lost, given what those took that have come.
pub(crate) fn is_silent(waited: Nanos, answers: &Histogram) -> bool {
    waited > SILENCE && waited > Nanos(answers.max().unwrap_or(0)) * SILENCE_FACTOR
}

/// What they say of a peer that ends the conversation.
pub(crate) const PEER_CLOSED: &str = "recv: closed by the other side";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_silence_when_it_is_long_in_itself_and_beside_others() {
        let mut answers = Histogram::new();
        assert!(!is_silent(Nanos::from_millis(900), &answers));
        assert!(is_silent(Nanos::from_millis(1100), &answers));
        answers.record(Nanos::from_millis(800).0);
        assert!(!is_silent(Nanos::from_secs(2), &answers));
        assert!(is_silent(Nanos::from_secs(3), &answers));
    }
}
