//! Pseudo-random numbers that are the same on every host.

/// Returns a pseudo-random number derived from two others: the output of splitmix64 for this state.
///
/// The state is the one after `number` steps from `seed` (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, 2014).
#[inline]
#[must_use]
pub const fn splitmix(seed: u64, number: u64) -> u64 {
    let state = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let once = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}
