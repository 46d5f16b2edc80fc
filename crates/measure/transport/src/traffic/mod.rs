//! When the next message is due, and how long it is.
//!
//! A [`TrafficPattern`] is what was asked for, a [`Schedule`] the times of one flow that follow from it, [`DatagramSizes`] the lengths. All are
//! functions of their arguments and a seed; they know neither clocks nor sockets.

mod pattern;
mod schedule;
mod sizes;

pub use pattern::TrafficPattern;
pub use schedule::{FlowIndex, Schedule};
pub use sizes::DatagramSizes;

/// Why a text describes no traffic; each says what would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// The first word is none that is known.
    #[error("constant, bursts, bursts:N, frames:FPS, frames:FPS:SPREAD% or poisson")]
    Pattern,
    /// The length of a burst is no number or out of its range.
    #[error("bursts of 1 to 1024 messages")]
    Burst,
    /// The rate of frames is no number or out of its range.
    #[error("0.1 to 10000 frames per second")]
    FrameRate,
    /// The spread of frames is no percentage or out of its range.
    #[error("a spread of 0% to 300%")]
    Spread,
    /// A part of a mix is not a size with a weight.
    #[error("imix, or sizes from 18 to 65507 B with weights, such as 512:7,1400:3")]
    Mix,
    /// The weights of a mix add up to nothing or to too much.
    #[error("weights that add up to 1 to 10000")]
    Weights,
}
