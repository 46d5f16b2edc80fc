//! Whether servers have to prove who they are.

/// Whether the certificates of servers are verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verification {
    /// With the system's certificate authorities.
    #[default]
    Checked,
    /// Not at all.
    Skipped,
}
