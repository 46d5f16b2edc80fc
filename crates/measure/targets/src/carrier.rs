//! What carries the questions to targets.

use fathom_model::Layer;

/// What carries the questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Udp,
}

impl Carrier {
    /// The layer of its tests.
    pub(crate) const fn layer(self) -> Layer {
        match self {
            Self::Tcp => Layer::Tcp,
            Self::Udp => Layer::Udp,
        }
    }
}
