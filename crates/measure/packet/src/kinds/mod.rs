//! What layers 2 and 3 can run.

mod addresses;
pub mod frames;
pub mod pktgen_receive;
pub mod stack_receive;

use fathom_engine::TestKind;

/// All kinds of test of this crate.
pub const KINDS: &[&dyn TestKind] =
    &[&frames::FramesTest, &stack_receive::StackReceive, &pktgen_receive::PktgenReceive];
