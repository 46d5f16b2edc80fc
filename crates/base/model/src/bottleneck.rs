//! The bottleneck of each connection of a stream (`docs/methods/restraints.md`).

use serde::{Deserialize, Serialize};

/// The cause for which a sender waited longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// A core of the sender is fully busy.
    SenderCpu,
    /// A core of the receiver is fully busy.
    ReceiverCpu,
    /// The cores shared by both ends are fully busy.
    SharedCpu,
    /// The receiver has no room: it reads too slowly, or its buffer is smaller than the capacity of the path.
    ReceiveWindow,
    /// The sender's buffer is smaller than the capacity of the path.
    SendBuffer,
    /// Segments are lost or marked, so congestion control keeps the window small.
    Loss,
    /// Segments wait in a full queue of the path.
    Queue,
    /// The congestion window limits the rate, on a path without loss and without queuing.
    CongestionWindow,
    /// The pacing rate that was set in the kernel.
    Pacing,
    /// The sender had nothing to send, for example because it keeps to a rate of its own.
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

/// How a sender spent the measured time, as shares from 0 to 1 that add up to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SenderTime {
    /// Nothing to send and nothing in flight.
    pub application: f64,
    /// The peer's window was full.
    pub receive_window: f64,
    /// The sender's own send buffer was full of data that the peer had not acknowledged.
    pub send_buffer: f64,
    /// Segments were in flight, and none of the above applied: the congestion window, pacing or the path.
    pub network: f64,
}

/// One connection of a stream in the measured phase of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowSummary {
    /// The local and remote address, from the sender's view.
    pub id: String,
    /// The sending host.
    pub sender: String,
    /// The payload acknowledged by the receiver, in bit/s.
    pub acknowledged_bps: f64,
    /// The causes of the sender's waiting time.
    pub waits: SenderTime,
    /// The resulting bottleneck.
    pub held_by: Bottleneck,
}
