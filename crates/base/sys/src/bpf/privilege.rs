//! What tests do where they may not do what they test.

use crate::Result;

pub(crate) fn or_skip<T>(outcome: Result<T>) -> Option<T> {
    fathom_testkit::or_skip(outcome, crate::Error::is_permission)
}
