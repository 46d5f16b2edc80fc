//! The due times and lengths of messages.
//!
//! A [`TrafficPattern`] is the requested pattern, a [`Schedule`] gives the times of one flow, [`DatagramSizes`] the lengths. All
//! depend only on their arguments and a seed; they know neither clocks nor sockets.

mod pattern;
mod schedule;
mod sizes;

pub use pattern::TrafficPattern;
pub use schedule::{FlowIndex, Schedule};
pub use sizes::DatagramSizes;

/// Why a text describes no traffic; the message of each names the valid form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    /// The first word is unknown.
    #[error("constant, bursts, bursts:N, frames:FPS, frames:FPS:SPREAD% or poisson")]
    Pattern,
    /// The length of a burst is not a number or out of range.
    #[error("bursts of 1 to 1024 messages")]
    Burst,
    /// The rate of frames is not a number or out of range.
    #[error("0.1 to 10000 frames per second")]
    FrameRate,
    /// The spread of frames is not a percentage or out of range.
    #[error("a spread of 0% to 300%")]
    Spread,
    /// A part of a mix is not a size with a weight.
    #[error("imix, or sizes from 18 to 65507 B with weights, such as 512:7,1400:3")]
    Mix,
    /// The weights of a mix add up to nothing or to too much.
    #[error("weights that add up to 1 to 10000")]
    Weights,
}
