//! What every cause of a bottleneck implements.

use fathom_model::Finding;

use crate::evidence::TestEvidence;

/// Something that may hold a test back or make its value say nothing.
///
/// The interface alone: the files beside this one implement it, one type per cause, and [`FINDING_RULES`](super::FINDING_RULES) lists them.
pub trait FindingRule: Sync {
    /// Its stable name, the id of its findings.
    fn id(&self) -> &'static str;
    /// What it finds in one test; nothing when all is well.
    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding>;
}
