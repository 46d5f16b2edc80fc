//! Quantiles, intervals, steadiness and line rates: pure functions over numbers and histograms.
//!
//! This crate knows no clock, no file and no kind of test. A value that cannot be computed is `None`, never 0 or NaN.

mod chi_square;
mod drift;
mod knee;
mod line_rate;
mod majority;
mod moments;
mod paired;
mod quantile;
mod splitmix;
mod spread;
mod steadiness;

pub use chi_square::{ChiSquare, chi_square, variation};
pub use drift::drift;
pub use knee::{Loaded, knee};
pub use line_rate::{ETHERNET_OVERHEAD, Headers, WIRE_OVERHEAD, best_goodput, frame_rate};
pub use majority::Votes;
pub use moments::{LEVEL, mean, mean_interval, proportion_interval, share_interval, stdev, student_t};
pub use paired::PairedDifferences;
pub use quantile::{Quantile, quantile_interval, quantile_ranks, quantile_summary, samples_needed};
pub use splitmix::splitmix;
pub use spread::{median, spread};
pub use steadiness::Steadiness;

#[cfg(test)]
mod noise;
