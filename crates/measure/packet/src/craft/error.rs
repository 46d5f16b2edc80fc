//! Why nothing can be sent, for the person who asked for it.

use super::{CaptureError, FrameSpecError, SizeMixError};
use fathom_wire::SizeError;

/// Why what was asked for makes no frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CraftError {
    /// A line describes no frame.
    #[error(transparent)]
    Spec(#[from] FrameSpecError),
    /// A size leaves no room for what is to be in the frame.
    #[error("frames of {size} bytes are too small for these headers and payload")]
    TooSmall {
        /// What was asked for, with the checksum on the wire.
        size: usize,
        /// The least that would do.
        least: usize,
    },
    /// A frame is longer than the device takes.
    #[error("frames of {size} bytes need an MTU of {needed}, and that of the device is {mtu}")]
    TooLong {
        /// How long they are, with the checksum on the wire.
        size: usize,
        /// What they need.
        needed: usize,
        /// What there is.
        mtu: usize,
    },
    /// A number of bytes is no size of a frame.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A text says no sizes.
    #[error("option `mix`: {0}")]
    Mix(#[from] SizeMixError),
    /// A file holds no frames that can be sent.
    #[error("cannot send the capture {path}: {cause}")]
    Capture {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: CaptureError,
    },
    /// Two options say the same thing.
    #[error("both `{one}` and `{other}` say what is sent")]
    Conflict {
        /// One option.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
}

impl CraftError {
    /// What to do instead, where that can be said.
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
