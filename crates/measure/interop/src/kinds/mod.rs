//! Test kinds that use the servers of other tools.

use fathom_engine::TestKind;

pub(crate) mod iperf3;

/// All test kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[&iperf3::TCP, &iperf3::UDP];
