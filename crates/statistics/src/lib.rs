//! Quantiles, intervals, steadiness: pure functions.

mod steadiness;

pub use steadiness::Steadiness;
