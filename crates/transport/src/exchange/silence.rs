//! When a peer that says nothing is lost, and how the errors of a record tell of it.

use fathom_model::units::Nanos;

/// Who waits longer than this for an answer when the trial ends is not waiting for a slow answer but for a lost peer.
pub(crate) const SILENCE: Nanos = Nanos::from_secs(1);
/// What the errors say then.
pub(crate) const SILENT: &str = "recv: no answer for more than 1 s before the end";
/// What they say of a peer that ends the conversation.
pub(crate) const CLOSED: &str = "recv: closed by the other side";
