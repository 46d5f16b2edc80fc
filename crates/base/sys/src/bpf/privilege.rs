//! What tests do where they may not do what they test.

use crate::Result;

/// The value, or nothing after saying loudly that a privilege is missing; where `CI` is set that is a failure.
pub(crate) fn or_skip<T>(outcome: Result<T>) -> Option<T> {
    match outcome {
        Err(error) if error.is_permission() && std::env::var_os("CI").is_none() => {
            eprintln!("SKIPPED: {error}: {}", error.source);
            None
        }
        outcome => Some(outcome.unwrap()),
    }
}
