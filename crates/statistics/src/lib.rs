//! Quantiles, intervals, steadiness: pure functions.
