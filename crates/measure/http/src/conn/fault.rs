//! Why a request or a connect failed. No text is built until the end of the trial.

use std::{collections::BTreeMap, fmt, io};

use fathom_engine::Error;
use fathom_model::{Cause, Failure};

pub(crate) use crate::target::RequestStage;
use crate::{h1::Malformed, target};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultCause {
    /// The kernel's error number.
    Errno(i32),
    /// No local port was free for a connection to the target.
    NoPort,
    /// No file descriptor was left.
    NoDescriptor,
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

/// The error of a trial in which no connection was opened, if the proxy, TLS or port step failed: most of the connects may only have waited for
/// their turn. Without one, the record has the connects that nobody answered, and the counters of the hosts may tell why.
pub(crate) fn unreachable_error(target: &str, faults: &FaultCounts) -> Option<Error> {
    let fault = faults.keys().find(|fault| matches!(fault.cause, FaultCause::Connect(_) | FaultCause::NoPort))?;
    let hint = fault.hint().map(str::to_owned);
    Some(Error::Unsupported { what: format!("cannot connect to {target}: {fault}"), hint })
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
        let cause = match Failure::from(error).cause {
            Cause::NoPort => FaultCause::NoPort,
            Cause::NoDescriptor => FaultCause::NoDescriptor,
            _ => FaultCause::Errno(error.errno().unwrap_or(0)),
        };
        Self { stage, cause }
    }
}

impl From<RequestFault> for Failure {
    fn from(fault: RequestFault) -> Self {
        let cause = match fault.cause {
            FaultCause::NoDescriptor => Cause::NoDescriptor,
            FaultCause::Errno(errno) => words(errno).as_str().into(),
            FaultCause::NoPort => Cause::NoPort,
            FaultCause::Timeout => Cause::Timeout,
            FaultCause::Unanswered => Cause::Unanswered,
            FaultCause::Incomplete => Cause::Incomplete,
            FaultCause::Closed => Cause::Other("closed before the answer".to_owned()),
            FaultCause::ClosedMidAnswer => Cause::Other("closed within the answer".to_owned()),
            FaultCause::TooLarge => {
                Cause::Other("the answer is larger than the 16 MiB that are kept of one".to_owned())
            }
            FaultCause::Malformed(malformed) => Cause::Other(malformed.to_string()),
            FaultCause::Connect(fault) => Cause::Other(fault.to_string()),
        };
        Self { stage: fault.stage.into(), cause }
    }
}

impl fmt::Display for RequestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Failure::from(*self).fmt(f)
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
            let error = unreachable_error("a", &faults.iter().map(|fault| (*fault, 1)).collect());
            error.map(|error| error.to_string())
        };
        assert_eq!(text(&[timeout]), None, "the counters of the hosts may tell why");
        assert_eq!(text(&[timeout, plain]), Some(format!("cannot connect to a: {plain}")));
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
