//! The interface of all finding rules.

use fathom_model::Finding;

use crate::{change::Change, evidence::TestEvidence};

/// The bytes that a new connection sends in its first round trip: ten segments (RFC 6928).
pub(crate) const FIRST_FLIGHT: f64 = 14_600.0;

/// The id of the finding about a device that had no time left, whose effects are many.
pub(crate) const DEVICE_CORE_FULL: &str = "device-core-full";

/// A rule that detects a cause that holds a test back or makes its value meaningless.
///
/// This file has the interface only. The files next to it implement it, one type per rule, and
/// [`FINDING_RULES`](super::FINDING_RULES) lists them.
pub trait FindingRule: Sync {
    /// The stable name of the rule, which is the id of its findings.
    fn id(&self) -> &'static str;
    /// Returns the findings for one test, or none if all is well.
    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding>;

    /// The ids of causes that make this finding one of their effects: next to one of them it is only a remark.
    fn effect_of(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if a finding stands beside one of those causes, because it is known to hold the test back by itself.
    fn stands_beside(&self, _cause: &str, _seen: &TestEvidence<'_>) -> bool {
        false
    }

    /// The change of an option that shows whether a finding of this rule is the cause, or `None` if no harmless one does.
    fn change(&self, _finding: &Finding, _seen: &TestEvidence<'_>) -> Option<Change> {
        None
    }
}
