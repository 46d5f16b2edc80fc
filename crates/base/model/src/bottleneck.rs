//! What held the connections of a stream back, each by itself (`docs/methods/restraints.md`).

use serde::{Deserialize, Serialize};

/// What a sender had to wait for more than for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// A core of the sender has no time left.
    SenderCpu,
    /// A core of the receiver has no time left.
    ReceiverCpu,
    /// The cores that both ends share have no time left.
    SharedCpu,
    /// The receiver has no room: it reads too slowly, or its buffer is smaller than the path holds.
    ReceiveWindow,
    /// The sender's buffer is smaller than the path holds.
    SendBuffer,
    /// Segments are lost or marked, so congestion control keeps the window small.
    Loss,
    /// Segments wait in a queue of the path, which is full.
    Queue,
    /// The congestion window, on a path that neither lost nor queued.
    CongestionWindow,
    /// The rate that the kernel was told to keep.
    Pacing,
    /// The sender had nothing to send, as when it keeps to a rate of its own.
    Application,
}

impl Bottleneck {
    /// Two or three words for the column of a table.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::SenderCpu => "sender cpu",
            Self::ReceiverCpu => "receiver cpu",
            Self::SharedCpu => "shared cores",
            Self::ReceiveWindow => "peer window",
            Self::SendBuffer => "send buffer",
            Self::Loss => "loss",
            Self::Queue => "full path",
            Self::CongestionWindow => "cwnd",
            Self::Pacing => "pacing",
            Self::Application => "application",
        }
    }
}

/// How a sender spent the measured time, as shares of 0 to 1 that make up the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SenderTime {
    /// Nothing to send and nothing under way.
    pub application: f64,
    /// The peer's window was full.
    pub receive_window: f64,
    /// The own send buffer was full of what the peer had not acknowledged.
    pub send_buffer: f64,
    /// Segments were under way, and none of the above: the congestion window, pacing, the path.
    pub network: f64,
}

/// One connection of a stream in the measured part of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowSummary {
    /// Local and remote address, seen from the sender.
    pub id: String,
    /// The host that sent.
    pub sender: String,
    /// Payload that the receiver acknowledged, per second, in bit/s.
    pub acknowledged_bps: f64,
    /// What the sender waited for.
    pub waits: SenderTime,
    /// What that comes down to.
    pub held_by: Bottleneck,
}
