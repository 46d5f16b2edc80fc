//! Why a role could not be played, as an agent tells its controller.

use serde::{Deserialize, Serialize};

/// What an error means for the run as a whole; the binary makes an exit code of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorClass {
    /// The request was wrong: it can be typed better.
    Usage,
    /// Something was found wanting before anything was started.
    Preflight,
    /// It was started, and there is no valid result.
    Failed,
    /// Something was lost on the way; what was measured is kept.
    Incomplete,
}

/// Why a role could not be played, as an agent tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFailure {
    /// What it means for the run.
    pub class: ErrorClass,
    /// What was attempted, on what.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What lies behind it, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

impl AgentFailure {
    /// A failure without hint and causes.
    #[must_use]
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), hint: None, causes: Vec::new() }
    }

    /// An engine's error; after the start, what would have been wanting before has failed.
    pub(crate) fn of_engine(error: &fathom_engine::Error, has_started: HasStarted) -> Self {
        use fathom_engine::Error as Engine;
        let class = match (error, has_started) {
            (Engine::Setting(_) | Engine::BadRequest { .. } | Engine::UnknownKind { .. }, _) => ErrorClass::Usage,
            (error, HasStarted::No) if error.is_preflight() => ErrorClass::Preflight,
            _ => ErrorClass::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        Self { class, message: error.to_string(), hint, causes: causes(error) }
    }
}

/// Whether a trial had begun when something went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HasStarted {
    No,
    Yes,
}

/// What lies behind an error, the nearest first.
pub(crate) fn causes(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(error.source(), |error| error.source()).map(ToString::to_string).collect()
}
