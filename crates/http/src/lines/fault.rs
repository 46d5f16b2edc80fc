//! Why a request or a connect failed, without a word of text until the end.

use std::{collections::BTreeMap, fmt, io};

use fathom_engine::Error;
use fathom_sys::Shortage;

pub(crate) use crate::dial::Stage;
use crate::{dial, h1::Malformed};

/// What came in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The kernel's number.
    Errno(i32),
    /// No local port was free for a connection to the target.
    NoPort,
    /// Nothing, for too long.
    Timeout,
    /// Nothing by the end of the trial, though for less than the time-out.
    Unanswered,
    /// No end of the answer by the end of the trial.
    Unended,
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

/// The error of a whole trial in which no connection came about.
///
/// What the layers on the way said is the cause, where one said anything: most connects may only have waited for their turn.
pub(crate) fn unreached(target: &str, faults: &Faults) -> Error {
    match faults.keys().find(|fault| matches!(fault.cause, Cause::Dial(_) | Cause::NoPort)) {
        Some(fault) => {
            let hint = fault.hint().map(str::to_owned);
            Error::Unsupported { what: format!("cannot connect to {target}: {fault}"), hint }
        }
        None => Error::Peer { what: format!("took no connection at {target} within the whole trial") },
    }
}

impl Fault {
    /// An answer that is not what HTTP/1.1 allows.
    pub(crate) const fn parse(malformed: Malformed) -> Self {
        Self { stage: Stage::Parse, cause: Cause::Malformed(malformed) }
    }

    /// Whether the request before it was answered, and has been counted as an attempt.
    pub(crate) const fn is_of_no_request(self) -> bool {
        matches!(self.cause, Cause::Malformed(Malformed::Surplus))
    }

    /// A connection that did not come about, or whose layers broke.
    pub(crate) fn dial(fault: dial::Fault) -> Self {
        Self { stage: fault.stage(), cause: Cause::Dial(fault) }
    }

    /// What to do about it, where that is known.
    pub(crate) fn hint(self) -> Option<&'static str> {
        match self.cause {
            Cause::Dial(fault) => fault.hint(),
            Cause::NoPort => Some(
                "use fewer connections or more source addresses (--source), widen net.ipv4.ip_local_port_range, \
                 or wait a minute for the ports in TIME_WAIT",
            ),
            _ => None,
        }
    }

    /// The failure of a system call.
    pub(crate) fn system(stage: Stage, error: &fathom_sys::Error) -> Self {
        // A bind is refused with the same number where the address is not one of this host's.
        let has_no_port = error.shortage() == Some(Shortage::Address) && error.call == "connect";
        let cause = if has_no_port { Cause::NoPort } else { Cause::Errno(error.errno().unwrap_or(0)) };
        Self { stage, cause }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.stage.name())?;
        match self.cause {
            Cause::Errno(errno) => write!(f, "{}", words(errno)),
            Cause::NoPort => f.write_str("no local port is free"),
            Cause::Timeout => f.write_str("timeout"),
            Cause::Unanswered => f.write_str("unanswered"),
            Cause::Unended => f.write_str("the answer did not end"),
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
    fn exhausted_ports_are_named_and_an_address_of_another_host_is_not_taken_for_them() {
        let error = |call: &'static str| fathom_sys::Error::new(call, io::Error::from_raw_os_error(99));
        let fault = Fault::system(Stage::Connect, &error("connect"));
        assert_eq!(fault.to_string(), "connect: no local port is free");
        assert!(fault.hint().is_some_and(|hint| hint.contains("ip_local_port_range")));
        assert_eq!(Fault::system(Stage::Connect, &error("bind")).cause, Cause::Errno(99));
    }

    #[test]
    fn a_trial_without_a_connection_is_told_by_the_layer_that_failed_before_what_only_waited() {
        let timeout = Fault { stage: Stage::Connect, cause: Cause::Timeout };
        let plain = Fault::dial(dial::TlsFault::NotTls.into());
        let text = |faults: &[Fault]| unreached("a", &faults.iter().map(|fault| (*fault, 1)).collect()).to_string();
        assert_eq!(text(&[timeout]), "the other side took no connection at a within the whole trial");
        assert_eq!(text(&[timeout, plain]), format!("cannot connect to a: {plain}"));
    }

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
