//! Why a request or a connect failed, without a word of text until the end.

use std::{collections::BTreeMap, fmt, io};

pub(crate) use crate::dial::Stage;
use crate::{dial, h1::Malformed};

/// What came in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The kernel's number.
    Errno(i32),
    /// Nothing, for too long.
    Timeout,
    /// The server closed before the first byte of the answer.
    Closed,
    /// The server closed within the answer.
    Cut,
    /// The answer is larger than what may be kept of it.
    TooLarge,
    /// The answer is not HTTP/1.1.
    Malformed(Malformed),
    /// What lies between a socket and HTTP.
    Dial(dial::Fault),
}

/// A failure as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub(crate) stage: Stage,
    pub(crate) cause: Cause,
}

/// Failures with how often each came.
pub(crate) type Faults = BTreeMap<Fault, u64>;

impl Fault {
    /// An answer that is not what HTTP/1.1 allows.
    pub(crate) const fn parse(malformed: Malformed) -> Self {
        Self { stage: Stage::Parse, cause: Cause::Malformed(malformed) }
    }

    /// A connection that did not come about, or whose layers broke.
    pub(crate) fn dial(fault: dial::Fault) -> Self {
        Self { stage: fault.stage(), cause: Cause::Dial(fault) }
    }

    /// What to do about it, where that is known.
    pub(crate) fn hint(self) -> Option<&'static str> {
        match self.cause {
            Cause::Dial(fault) => fault.hint(),
            _ => None,
        }
    }

    /// The failure of a system call.
    pub(crate) fn system(stage: Stage, error: &fathom_sys::Error) -> Self {
        Self { stage, cause: Cause::Errno(error.errno().unwrap_or(0)) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.stage.name())?;
        match self.cause {
            Cause::Errno(errno) => write!(f, "{}", words(errno)),
            Cause::Timeout => f.write_str("timeout"),
            Cause::Closed => f.write_str("closed before the answer"),
            Cause::Cut => f.write_str("closed within the answer"),
            Cause::TooLarge => f.write_str("the answer is larger than the 16 MiB that are kept of one"),
            Cause::Malformed(malformed) => write!(f, "{malformed}"),
            Cause::Dial(fault) => write!(f, "{fault}"),
        }
    }
}

/// The C library's words for an error number, in lower case and without the number.
fn words(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_reads_as_stage_and_cause() {
        let cases = [
            (Stage::Connect, Cause::Errno(111), "connect: connection refused"),
            (Stage::Read, Cause::Errno(104), "read: connection reset by peer"),
            (Stage::Read, Cause::Timeout, "read: timeout"),
            (Stage::Parse, Cause::Malformed(Malformed::Version), "parse: not HTTP/1"),
        ];
        for (stage, cause, text) in cases {
            assert_eq!(Fault { stage, cause }.to_string(), text);
        }
    }
}
