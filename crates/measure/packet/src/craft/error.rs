//! Why nothing can be sent, for the user.

use super::{CaptureError, FrameSpecError, SizeMixError};
use fathom_wire::SizeError;

/// Why a request yields no frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CraftError {
    /// A line describes no frame.
    #[error(transparent)]
    Spec(#[from] FrameSpecError),
    /// The headers and the payload do not fit into the size.
    #[error("frames of {size} bytes are too small for these headers and payload")]
    TooSmall {
        /// The requested size, FCS included.
        size: usize,
        /// The smallest size that works.
        least: usize,
    },
    /// A frame is too long for the device.
    #[error("frames of {size} bytes need an MTU of {needed}, and that of the device is {mtu}")]
    TooLong {
        /// The size, FCS included.
        size: usize,
        /// The MTU that the frames need.
        needed: usize,
        /// The MTU of the device.
        mtu: usize,
    },
    /// No frame has this size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A text is not a valid size mix.
    #[error("option `mix`: {0}")]
    Mix(#[from] SizeMixError),
    /// A capture has no frames that can be sent.
    #[error("cannot send the capture {path}: {cause}")]
    Capture { path: String, cause: CaptureError },
    /// Two options conflict.
    #[error("`{one}` and `{other}` both define the frames")]
    Conflict { one: &'static str, other: &'static str },
}

impl CraftError {
    /// Returns what to do instead, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Spec(error) => error.fix(),
            Self::Mix(error) => Some(error.hint()),
            Self::Capture { cause, .. } => cause.hint(),
            Self::Conflict { other, .. } => Some(format!("leave out `{other}`")),
            Self::TooLong { needed, .. } => Some(format!("ip link set DEVICE mtu {needed}, on both ends")),
            Self::Size(_) => None,
            Self::TooSmall { least, .. } => Some(format!("they need {least} bytes: --size {least}, or leave it out")),
        }
    }
}

impl From<CraftError> for fathom_engine::Error {
    fn from(error: CraftError) -> Self {
        Self::Unsupported { what: error.to_string(), hint: error.hint() }
    }
}
