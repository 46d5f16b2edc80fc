//! The failure of a role, as an agent reports it to its controller.

use serde::{Deserialize, Serialize};

/// The effect of an error on the run; the binary converts it to an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorClass {
    /// The request was wrong and can be corrected by the user.
    Usage,
    /// A problem was found before anything was started.
    Preflight,
    /// The run was started, but there is no valid result.
    Failed,
    /// Part of the run is missing; the measured data is kept.
    Incomplete,
}

/// The failure of a role, as an agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFailure {
    /// The effect on the run.
    pub class: ErrorClass,
    /// The attempted action and its object.
    pub message: String,
    /// How to fix it, a way on each line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The underlying causes, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Whether the other side could not be reached, or did not do its part: something between the two may be why.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_between_hosts: bool,
}

impl AgentFailure {
    /// Creates a failure without hint and causes.
    #[must_use]
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), hint: None, causes: Vec::new(), is_between_hosts: false }
    }

    /// Converts an engine's error; after the start, a preflight error counts as a failure.
    pub(crate) fn of_engine(error: &fathom_engine::Error, has_started: HasStarted) -> Self {
        use fathom_engine::Error as Engine;
        let class = match (error, has_started) {
            (Engine::Setting(_) | Engine::BadRequest { .. } | Engine::UnknownKind { .. }, _) => ErrorClass::Usage,
            (error, HasStarted::No) if error.is_preflight() => ErrorClass::Preflight,
            _ => ErrorClass::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        let is_between_hosts = match error {
            Engine::Unreachable { .. } | Engine::Peer { .. } => true,
            Engine::System { cause, .. } => cause.is_unreachable(),
            _ => false,
        };
        Self { class, message: error.to_string(), hint, causes: causes(error), is_between_hosts }
    }
}

/// Whether the trial had started before the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasStarted {
    No,
    Yes,
}

/// Returns the underlying causes of an error, nearest first.
pub(crate) fn causes(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use fathom_engine::Error as Engine;

    use super::*;

    #[test]
    fn a_failed_connect_is_between_the_hosts_and_an_option_that_the_host_lacks_is_not() {
        let refused = fathom_sys::Error::new("connect", std::io::ErrorKind::TimedOut);
        let unreachable = Engine::unreachable(([192, 0, 2, 1], 7).into(), refused);
        let peer = Engine::Peer { what: "took no connection".to_owned() };
        let lacks = Engine::Unsupported { what: "no such congestion control".to_owned(), hint: None };
        let no_route = fathom_sys::Error::new("connect", std::io::ErrorKind::NetworkUnreachable);
        let no_route = Engine::System { what: "connect a UDP socket".to_owned(), cause: no_route };
        let is_between = |error: &Engine| AgentFailure::of_engine(error, HasStarted::No).is_between_hosts;
        assert!(is_between(&unreachable) && is_between(&peer) && is_between(&no_route));
        assert!(!is_between(&lacks));
        let plain = serde_json::to_string(&AgentFailure::of_engine(&lacks, HasStarted::No)).unwrap();
        assert!(!plain.contains("is_between_hosts"), "{plain}");
    }
}
