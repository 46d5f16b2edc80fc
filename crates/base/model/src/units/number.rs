//! The few places where a number changes its representation.

/// The nearest floating-point number: exact up to 2⁵³.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "the caller asks for an approximation, and 2^53 ns are 104 days")]
pub const fn approximate(count: u64) -> f64 {
    count as f64
}

/// The nearest floating-point number to a signed count: exact up to ±2⁵³.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "the caller asks for an approximation")]
pub const fn approximate_signed(count: i64) -> f64 {
    count as f64
}

/// The nearest whole number, from 0 (also for NaN) to `u64::MAX`.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast to an integer saturates")]
pub const fn rounded(number: f64) -> u64 {
    number.round() as u64
}

/// The ratio of a part to a whole; `None` if the whole is zero.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| approximate(part) / approximate(whole))
}
