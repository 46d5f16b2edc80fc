//! Failures of a test's operations: the operation and its cause, and how often each occurred.

use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    ops::{Deref, Index},
};

use serde::{Deserialize, Serialize};

/// The operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Looking up the address of a name.
    Lookup,
    /// Creating a socket and connecting it.
    Connect,
    /// Requesting a tunnel from a proxy.
    Proxy,
    /// The TLS handshake, and TLS errors after it.
    Tls,
    /// Sending a request.
    Send,
    /// Waiting for a response.
    Read,
    /// Parsing a response.
    Parse,
    /// Waiting until the peer has received the rest of a stream.
    Drain,
    /// A callback of the user's script.
    Script,
    /// A system call or another operation, by its name.
    Call(String),
    /// The cause says everything: an unexpected response, an ICMP error.
    None,
}

/// The stages with a word of their own.
const STAGES: [(&str, Stage); 9] = [
    ("dns", Stage::Lookup),
    ("connect", Stage::Connect),
    ("proxy", Stage::Proxy),
    ("tls", Stage::Tls),
    ("send", Stage::Send),
    ("read", Stage::Read),
    ("parse", Stage::Parse),
    ("drain", Stage::Drain),
    ("script", Stage::Script),
];

/// The cause of a failure; causes that the program acts on have a variant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Nothing arrived within the timeout.
    Timeout,
    /// There was no response by the end of the trial, which came before the timeout.
    Unanswered,
    /// The response was not complete by the end of the trial.
    Incomplete,
    /// The peer refused: nothing listens on the port, or a firewall rejects.
    Refused,
    /// The connection was reset (ECONNRESET).
    Reset,
    /// No local port was free for the pair of addresses (EADDRNOTAVAIL of connect).
    NoPort,
    /// The process or the host has no file descriptor left (EMFILE, ENFILE).
    NoDescriptor,
    /// This host does not let it out: a filter rule (EPERM) or a route (EACCES).
    Forbidden,
    /// Full-size segments are retransmitted and never acknowledged.
    NeverAcknowledged,
    /// Another cause, in words.
    Other(String),
}

/// The causes with fixed words.
const CAUSES: [(&str, Cause); 9] = [
    ("timeout", Cause::Timeout),
    ("unanswered", Cause::Unanswered),
    ("the answer did not end", Cause::Incomplete),
    ("connection refused", Cause::Refused),
    ("connection reset by peer", Cause::Reset),
    ("no local port is free", Cause::NoPort),
    ("no descriptors left", Cause::NoDescriptor),
    ("permission denied", Cause::Forbidden),
    ("full-size segments are sent again and never acknowledged", Cause::NeverAcknowledged),
];

/// A failed operation as it is counted; a document has it as text: `connect: connection refused`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Failure {
    /// The operation.
    pub stage: Stage,
    /// Why it failed.
    pub cause: Cause,
}

impl Failure {
    /// A failure of a named system call.
    #[must_use]
    pub fn of_call(call: &str, cause: Cause) -> Self {
        let known = STAGES.iter().find(|(word, _)| *word == call);
        Self { stage: known.map_or_else(|| Stage::Call(call.to_owned()), |(_, stage)| stage.clone()), cause }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Self {
        let known = CAUSES.iter().find(|(words, _)| *words == text);
        known.map_or_else(|| Self::Other(text.to_owned()), |(_, cause)| cause.clone())
    }
}

impl From<&str> for Failure {
    /// Reads the text of a document: the operation before the first colon, and the cause behind it. A text without a colon is a cause.
    fn from(text: &str) -> Self {
        match text.split_once(": ") {
            Some((call, cause)) => Self::of_call(call, cause.into()),
            _ => Self { stage: Stage::None, cause: text.into() },
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.to_string()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(words) => f.write_str(words),
            known => f.write_str(CAUSES.iter().find(|(_, cause)| cause == known).map_or("", |(words, _)| words)),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stage {
            Stage::None => {}
            Stage::Call(call) => write!(f, "{call}: ")?,
            known => {
                STAGES.iter().find(|(_, stage)| stage == known).map_or(Ok(()), |(word, _)| write!(f, "{word}: "))?;
            }
        }
        write!(f, "{}", self.cause)
    }
}

/// How often each failure occurred.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct FailureCounts(BTreeMap<Failure, u64>);

impl FailureCounts {
    /// Counts one failure.
    pub fn count(&mut self, failure: impl Into<Failure>) {
        self.add(failure, 1);
    }

    /// Adds `n` occurrences of a failure.
    pub fn add(&mut self, failure: impl Into<Failure>, n: u64) {
        *self.0.entry(failure.into()).or_default() += n;
    }
}

impl<F: Into<Failure>> Extend<(F, u64)> for FailureCounts {
    fn extend<I: IntoIterator<Item = (F, u64)>>(&mut self, counts: I) {
        counts.into_iter().for_each(|(failure, n)| self.add(failure, n));
    }
}

impl<F: Into<Failure>> FromIterator<(F, u64)> for FailureCounts {
    fn from_iter<I: IntoIterator<Item = (F, u64)>>(counts: I) -> Self {
        let mut all = Self::default();
        all.extend(counts);
        all
    }
}

impl IntoIterator for FailureCounts {
    type Item = (Failure, u64);
    type IntoIter = btree_map::IntoIter<Failure, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a FailureCounts {
    type Item = (&'a Failure, &'a u64);
    type IntoIter = btree_map::Iter<'a, Failure, u64>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Deref for FailureCounts {
    type Target = BTreeMap<Failure, u64>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The count of a failure by its text; 0 if it did not occur.
impl Index<&str> for FailureCounts {
    type Output = u64;

    fn index(&self, text: &str) -> &u64 {
        self.0.get(&Failure::from(text)).unwrap_or(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_comes_back_from_its_text() {
        let cases = [
            ("connect: connection refused", Stage::Connect, Cause::Refused),
            ("read: timeout", Stage::Read, Cause::Timeout),
            ("sendmmsg: no descriptors left", Stage::Call("sendmmsg".to_owned()), Cause::NoDescriptor),
            ("status 500, expected 200", Stage::None, Cause::Other("status 500, expected 200".to_owned())),
            (
                "live frames: network down",
                Stage::Call("live frames".to_owned()),
                Cause::Other("network down".to_owned()),
            ),
            ("script: x.lua:1: boom", Stage::Script, Cause::Other("x.lua:1: boom".to_owned())),
        ];
        for (text, stage, cause) in cases {
            let failure = Failure { stage, cause };
            assert_eq!((Failure::from(text), failure.to_string().as_str()), (failure, text));
        }
        for (words, cause) in CAUSES {
            assert_eq!((Cause::from(words), cause.to_string().as_str()), (cause, words));
        }
    }

    #[test]
    fn counts_are_an_object_of_texts_in_a_document() {
        let mut counts: FailureCounts =
            [("read: timeout", 2), ("connect: connection refused", 3)].into_iter().collect();
        counts.count("read: timeout");
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"connect: connection refused":3,"read: timeout":3}"#);
        assert_eq!(serde_json::from_str::<FailureCounts>(&json).unwrap(), counts);
        assert_eq!((counts["read: timeout"], counts["send: timeout"]), (3, 0));
    }
}
