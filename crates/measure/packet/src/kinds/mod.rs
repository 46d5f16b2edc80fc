//! The test kinds of layers 2 and 3.

mod addresses;
pub mod frames;
pub mod pktgen_receive;
pub mod stack_receive;

use fathom_engine::TestKind;

/// All test kinds of this crate.
pub const KINDS: &[&dyn TestKind] =
    &[&frames::FramesTest, &stack_receive::StackReceive, &pktgen_receive::PktgenReceive];
