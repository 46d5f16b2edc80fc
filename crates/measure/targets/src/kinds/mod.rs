//! The kinds of test about targets.

mod flows;
mod metrics;
mod spread;

use fathom_engine::TestKind;

/// All test kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[
    &spread::TCP,
    &spread::UDP,
    &flows::TCP_CONSISTENCY,
    &flows::UDP_CONSISTENCY,
    &flows::TCP_CONTINUITY,
    &flows::UDP_CONTINUITY,
];
