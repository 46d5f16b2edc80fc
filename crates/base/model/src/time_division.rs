//! How the time of a stream divides: that of the threads at both ends, and that of its connections.

use serde::{Deserialize, Serialize};

/// The thing whose time is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeOwner {
    /// The threads that send.
    SendingThreads,
    /// The sending ends of the connections, as the kernel divides their time (`tcp_chrono`).
    Connections,
    /// The threads that receive.
    ReceivingThreads,
}

/// A use of time. One owner's uses exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TimeUse {
    /// A thread runs.
    OnCore,
    /// A thread has work, and its core runs something else (run delay).
    CoreWait,
    /// A thread sleeps: a sender until the kernel takes more data or the schedule says so, a receiver until data arrive.
    Asleep,
    /// Segments are in flight: the congestion window, pacing or the path.
    Network,
    /// The receive window of the peer is full.
    ReceiveWindow,
    /// The send buffer is full of data that the peer has not acknowledged.
    SendBuffer,
    /// A connection has no data to send.
    NoData,
}

/// One use and its share of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TimeShare {
    /// The use.
    pub to: TimeUse,
    /// Its share, from 0 to 1.
    pub share: f64,
}

/// How the measured time of one owner divides. The shares add up to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TimeDivision {
    /// The owner.
    pub owner: TimeOwner,
    /// The host of its threads or sending ends.
    pub host: String,
    /// The uses that took time, in a fixed order.
    pub shares: Vec<TimeShare>,
}
