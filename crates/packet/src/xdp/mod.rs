//! Programs that count, drop or hand on frames as they come in, before the network stack sees them.
//!
//! Each is a function that returns instructions, so there is nothing to compile and nothing to find at run time. They know
//! frames without VLAN tags only.

mod buckets;
mod dropper;
mod gate;
mod matching;
mod policer;
mod redirect;
mod redirector;
mod sink;
mod strays;
#[cfg(test)]
mod trial;

pub use dropper::dropper;
pub use gate::{Fate, Gate};
pub use matching::Matching;
pub use policer::{PolicerLimit, policed_redirect, policer};
pub use redirect::{Onward, Redirect};
pub(crate) use redirector::{arrival, redirector};
pub use sink::{Arrivals, Expected, Sink, StepSeen, Stepping, Times};
pub use strays::Strays;
#[cfg(test)]
pub(crate) use trial::or_skip;

use fathom_sys::bpf::{
    Assembler, Operand,
    Register::{self, R1},
};

/// Where on its stack a program keeps the index of the entry it looks up.
const KEY: i16 = -4;

/// Adds to a word that no other processor writes; `R1` is lost.
fn increase(a: &mut Assembler, row: Register, word: i16, amount: impl Into<Operand>) {
    a.load(R1, row.double(word)).add(R1, amount).store(row.double(word), R1);
}
