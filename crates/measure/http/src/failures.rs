//! Failures by the operation in progress, as the replaced tools count them.

use std::collections::BTreeMap;

/// The number of failed requests and connects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Of lookups, connects, proxies and TLS handshakes.
    pub connect: u64,
    /// Of sending requests.
    pub send: u64,
    /// Of receiving answers, unusable answers included.
    pub receive: u64,
    /// Timeouts of any operation.
    pub timeout: u64,
}

impl FailureCounts {
    /// Extracts the counts from the errors of a record. A mistake in a script is not a connection failure.
    #[must_use]
    pub fn of(errors: &BTreeMap<String, u64>) -> Self {
        let mut failures = Self::default();
        for (what, n) in errors {
            let place = match what.split_once(':') {
                // The tools do not report operations that are still in progress at their end.
                Some(("script", _) | (_, " unanswered" | " the answer did not end")) => continue,
                Some((_, " timeout")) => &mut failures.timeout,
                Some(("read" | "parse", _)) => &mut failures.receive,
                Some(("send", _)) => &mut failures.send,
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
        let failures = FailureCounts::of(&errors.map(|(what, n)| (what.to_owned(), n)).into());
        assert_eq!(failures, FailureCounts { connect: 3, send: 4, receive: 24, timeout: 96 });
        assert_eq!(failures.total(), 127);
    }
}
