//! Why a request or a connect failed. No text is built until the end of the trial.

use std::{collections::BTreeMap, fmt, io};

use fathom_engine::Error;
use fathom_sys::ExhaustedResource;

pub(crate) use crate::target::RequestStage;
use crate::{h1::Malformed, target};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultCause {
    /// The kernel's error number.
    Errno(i32),
    /// No local port was free for a connection to the target.
    NoPort,
    /// Nothing arrived within the timeout.
    Timeout,
    /// No answer by the end of the trial, which came before the timeout.
    Unanswered,
    /// The answer was not complete by the end of the trial.
    Incomplete,
    /// The server closed before the first byte of the answer.
    Closed,
    /// The server closed in the middle of the answer.
    ClosedMidAnswer,
    /// The answer is larger than the limit of what is kept.
    TooLarge,
    Malformed(Malformed),
    /// A step between the socket and HTTP failed.
    Connect(target::ConnectFault),
}

/// A failure, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestFault {
    pub(crate) stage: RequestStage,
    pub(crate) cause: FaultCause,
}

/// The number of failures of each kind.
pub(crate) type FaultCounts = BTreeMap<RequestFault, u64>;

/// The error of a trial in which no connection was opened.
///
/// Reports a failure of the proxy, TLS or port step if there is one: most of the connects may only have waited for their turn.
pub(crate) fn unreachable_error(target: &str, faults: &FaultCounts) -> Error {
    match faults.keys().find(|fault| matches!(fault.cause, FaultCause::Connect(_) | FaultCause::NoPort)) {
        Some(fault) => {
            let hint = fault.hint().map(str::to_owned);
            Error::Unsupported { what: format!("cannot connect to {target}: {fault}"), hint }
        }
        None => Error::Peer { what: format!("took no connection at {target} within the whole trial") },
    }
}

impl RequestFault {
    /// An answer that violates HTTP/1.1.
    pub(crate) const fn parse(malformed: Malformed) -> Self {
        Self { stage: RequestStage::Parse, cause: FaultCause::Malformed(malformed) }
    }

    /// Whether the fault came after a complete answer, so that the request has already been counted as an attempt.
    pub(crate) const fn is_between_requests(self) -> bool {
        matches!(self.cause, FaultCause::Malformed(Malformed::Surplus))
    }

    /// A connection that could not be opened, or whose channel failed.
    pub(crate) fn connect(fault: target::ConnectFault) -> Self {
        Self { stage: fault.stage(), cause: FaultCause::Connect(fault) }
    }

    /// A hint at the remedy, if one is known.
    pub(crate) fn hint(self) -> Option<&'static str> {
        match self.cause {
            FaultCause::Connect(fault) => fault.hint(),
            FaultCause::NoPort => Some(
                "use fewer connections or more source addresses (--source), widen net.ipv4.ip_local_port_range, \
                 or wait a minute for the ports in TIME_WAIT",
            ),
            _ => None,
        }
    }

    pub(crate) fn system(stage: RequestStage, error: &fathom_sys::Error) -> Self {
        // A bind fails with the same number when the address does not belong to this host.
        let has_no_port = error.shortage() == Some(ExhaustedResource::Address) && error.call == "connect";
        let cause = if has_no_port { FaultCause::NoPort } else { FaultCause::Errno(error.errno().unwrap_or(0)) };
        Self { stage, cause }
    }
}

impl fmt::Display for RequestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.stage.name())?;
        match self.cause {
            FaultCause::Errno(errno) => write!(f, "{}", words(errno)),
            FaultCause::NoPort => f.write_str("no local port is free"),
            FaultCause::Timeout => f.write_str("timeout"),
            FaultCause::Unanswered => f.write_str("unanswered"),
            FaultCause::Incomplete => f.write_str("the answer did not end"),
            FaultCause::Closed => f.write_str("closed before the answer"),
            FaultCause::ClosedMidAnswer => f.write_str("closed within the answer"),
            FaultCause::TooLarge => f.write_str("the answer is larger than the 16 MiB that are kept of one"),
            FaultCause::Malformed(malformed) => write!(f, "{malformed}"),
            FaultCause::Connect(fault) => write!(f, "{fault}"),
        }
    }
}

/// The C library's text for an error number, in lower case and without the number.
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
        let fault = RequestFault::system(RequestStage::Connect, &error("connect"));
        assert_eq!(fault.to_string(), "connect: no local port is free");
        assert!(fault.hint().is_some_and(|hint| hint.contains("ip_local_port_range")));
        assert_eq!(RequestFault::system(RequestStage::Connect, &error("bind")).cause, FaultCause::Errno(99));
    }

    #[test]
    fn a_trial_without_a_connection_is_told_by_the_layer_that_failed_before_what_only_waited() {
        let timeout = RequestFault { stage: RequestStage::Connect, cause: FaultCause::Timeout };
        let plain = RequestFault::connect(target::TlsFault::NotTls.into());
        let text = |faults: &[RequestFault]| {
            unreachable_error("a", &faults.iter().map(|fault| (*fault, 1)).collect()).to_string()
        };
        assert_eq!(text(&[timeout]), "the other side took no connection at a within the whole trial");
        assert_eq!(text(&[timeout, plain]), format!("cannot connect to a: {plain}"));
    }

    #[test]
    fn a_fault_reads_as_stage_and_cause() {
        let cases = [
            (RequestStage::Connect, FaultCause::Errno(111), "connect: connection refused"),
            (RequestStage::Read, FaultCause::Errno(104), "read: connection reset by peer"),
            (RequestStage::Read, FaultCause::Timeout, "read: timeout"),
            (RequestStage::Parse, FaultCause::Malformed(Malformed::Version), "parse: not HTTP/1"),
        ];
        for (stage, cause, text) in cases {
            assert_eq!(RequestFault { stage, cause }.to_string(), text);
        }
    }
}
