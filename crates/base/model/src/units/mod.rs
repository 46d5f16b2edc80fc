//! Numbers that carry their unit in their type.
//!
//! Rates of a network are in bit/s with SI prefixes, volumes in bytes with IEC prefixes, times in ns to s with three to four significant
//! digits. A rate over an empty span is not a number, so dividing by [`Nanos`] returns an `Option`.

mod number;
mod rate;
mod text;
mod time;
mod volume;

pub use number::{approximate, approximate_signed, ratio, rounded};
pub use rate::{BitsPerSec, PerSec};
pub use text::{UnitError, counted, grouped, percent, share_of_percent, significant, whole};
pub use time::Nanos;
pub use volume::{Bytes, Frames};
