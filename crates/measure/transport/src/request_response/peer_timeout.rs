//! Decides when a silent peer is lost, and names the error.

use fathom_model::{Histogram, units::Nanos};

/// A longer wait for an answer at the end of a trial may indicate a lost peer and not a slow answer …
const SILENCE: Nanos = Nanos::from_secs(1);
/// … if it is this many times the longest answer of the others: with many flows each waits for all others.
const SILENCE_FACTOR: u64 = 3;
/// The error text for a silent peer.
pub(crate) const PEER_SILENT: &str = "recv: no answer for more than 1 s before the end";
/// The error text for a connection that was still not open at the end.
pub(crate) const CONNECT_UNANSWERED: &str = "connect: unanswered";
/// Whether a wait indicates a lost peer, given the times of the answers that have arrived.
pub(crate) fn is_silent(waited: Nanos, answers: &Histogram) -> bool {
    waited > SILENCE && waited > Nanos(answers.max().unwrap_or(0)) * SILENCE_FACTOR
}

/// The error text for a peer that closes the connection.
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
