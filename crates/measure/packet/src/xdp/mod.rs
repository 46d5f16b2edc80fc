//! Programs that count, drop or redirect incoming frames before the network stack sees them.
//!
//! Each is a function that returns instructions, so nothing is compiled or searched for at run time. They handle frames without
//! VLAN tags only.

mod drop_program;
mod dropper;
mod frame_match;
mod policer;
mod redirect;
mod sink;
#[cfg(test)]
mod test_frames;
mod unrelated;
mod xsk_redirect;

pub use drop_program::{DropCounts, DropProgram};
pub use dropper::dropper;
pub use frame_match::FrameMatch;
pub use policer::{PolicerLimit, policed_redirect, policer};
pub use redirect::{Redirect, RedirectTarget};
pub use sink::{ExpectedFrames, FrameCounts, FrameTimes, RateStepTimes, RateSteps, Sink};
#[cfg(test)]
pub(crate) use test_frames::or_skip;
pub use unrelated::UnrelatedFrames;
pub(crate) use xsk_redirect::{arrival_time, load_xsk_redirect};

use fathom_sys::bpf::{
    Assembler, Operand,
    Register::{self, R1},
};

/// The stack offset of the key of a map lookup.
const KEY: i16 = -4;

/// Adds to a word that no other processor writes. Clobbers `R1`.
fn add_to_word(a: &mut Assembler, row: Register, word: i16, amount: impl Into<Operand>) {
    a.load(R1, row.double(word)).add(R1, amount).store(row.double(word), R1);
}
