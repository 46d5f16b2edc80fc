//! Skips tests that lack the privilege they need.

use crate::Result;

pub(crate) fn or_skip<T>(outcome: Result<T>) -> Option<T> {
    fathom_testkit::or_skip(outcome, crate::Error::is_permission)
}
