//! When the next message is due, and how long it is.
//!
//! A [`Traffic`] is what was asked for, a [`Schedule`] the times of one flow that follow from it, [`Sizes`] the lengths. All are
//! functions of their arguments and a seed; they know neither clocks nor sockets.

mod pattern;
mod schedule;
mod sizes;

pub(crate) use pattern::Traffic;
pub(crate) use schedule::{Schedule, Share};
pub(crate) use sizes::Sizes;

/// Why a text describes no traffic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrafficError {
    /// The first word is none that is known.
    #[error("`{0}` is none of constant, bursts, bursts:N, frames:FPS, frames:FPS:SPREAD%, poisson")]
    Pattern(String),
    /// A number is missing, wrong or out of its range.
    #[error("`{given}` is not {expected}")]
    Number {
        /// What stands there.
        given: String,
        /// What should.
        expected: &'static str,
    },
    /// A part of a mix is not a size with a weight.
    #[error("`{0}` is not a size from 18 to 65507 B with a weight, such as 512:7")]
    Part(String),
    /// The weights of a mix add up to nothing or to too much.
    #[error("the weights of a mix add up to 1 to 10000, not {0}")]
    Weights(u64),
}
