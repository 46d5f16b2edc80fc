//! Failures by the operation in progress, as the replaced tools count them.

use fathom_model::{Cause, FailureCounts, Stage};

/// The number of failed requests and connects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailuresByStage {
    /// Of lookups, connects, proxies and TLS handshakes.
    pub connect: u64,
    /// Of sending requests.
    pub send: u64,
    /// Of receiving answers, unusable answers included.
    pub receive: u64,
    /// Timeouts of any operation.
    pub timeout: u64,
}

impl FailuresByStage {
    /// Extracts the counts from the errors of a record. A mistake in a script is not a connection failure.
    #[must_use]
    pub fn of(errors: &FailureCounts) -> Self {
        let mut failures = Self::default();
        for (failure, n) in errors {
            let place = match (&failure.stage, &failure.cause) {
                // The tools do not report operations that are still in progress at their end.
                (Stage::Script, _) | (_, Cause::Unanswered | Cause::Incomplete) => continue,
                (_, Cause::Timeout) => &mut failures.timeout,
                (Stage::Read | Stage::Parse, _) => &mut failures.receive,
                (Stage::Send, _) => &mut failures.send,
                _ => &mut failures.connect,
            };
            *place += n;
        }
        failures
    }

    #[must_use]
    pub fn total(self) -> u64 {
        self.connect + self.send + self.receive + self.timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart_by_where_they_happened() {
        let errors = [
            ("connect: connection refused", 1),
            ("tls: bad certificate", 2),
            ("send: broken pipe", 4),
            ("read: closed before the answer", 8),
            ("parse: no status line", 16),
            ("connect: timeout", 32),
            ("read: timeout", 64),
            ("read: unanswered", 1000),
            ("connect: unanswered", 1000),
            ("script: x.lua:1: boom (request(), thread 1)", 1000),
        ];
        let failures = FailuresByStage::of(&errors.into_iter().collect());
        assert_eq!(failures, FailuresByStage { connect: 3, send: 4, receive: 24, timeout: 96 });
        assert_eq!(failures.total(), 127);
    }
}
