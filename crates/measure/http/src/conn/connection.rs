//! One connection, from closed to ready for requests.

use fathom_model::units::Nanos;

use super::RequestStage;
use crate::target::{self, Channel};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectState {
    /// Has no socket.
    Closed,
    /// Has been waiting for an address since this time.
    Resolving(Nanos),
    /// Has been connecting since this time.
    Connecting(Nanos),
    /// Connected at this time; the steps before HTTP (proxy, TLS) are in progress.
    Negotiating(Nanos),
    Open,
}

/// The state of a connection below HTTP.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) state: ConnectState,
    pub(crate) channel: Channel,
    /// The index of the server that it connects to.
    pub(crate) upstream: u16,
    /// The time that the connect took; cleared once it has been reported.
    pub(crate) connect_time: Nanos,
}

impl Connection {
    pub(crate) fn new(route: u16) -> Self {
        Self { state: ConnectState::Closed, channel: Channel::default(), upstream: route, connect_time: Nanos::ZERO }
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state == ConnectState::Open
    }

    /// Whether it is between closed and open.
    pub(crate) fn is_opening(&self) -> bool {
        !matches!(self.state, ConnectState::Open | ConnectState::Closed)
    }

    /// The step in progress while it is opening.
    pub(crate) fn stage(&self) -> Option<RequestStage> {
        match self.state {
            ConnectState::Closed | ConnectState::Open => None,
            ConnectState::Resolving(_) => Some(RequestStage::Resolve),
            ConnectState::Connecting(_) => Some(RequestStage::Connect),
            ConnectState::Negotiating(_) => {
                Some(self.channel.fault_if_closed().map_or(RequestStage::Connect, target::ConnectFault::stage))
            }
        }
    }

    /// When that step began.
    pub(crate) fn since(&self) -> Option<Nanos> {
        match self.state {
            ConnectState::Closed | ConnectState::Open => None,
            ConnectState::Resolving(since) | ConnectState::Connecting(since) | ConnectState::Negotiating(since) => {
                Some(since)
            }
        }
    }

    /// The step in progress if it has taken longer than `timeout`.
    pub(crate) fn overdue(&self, now: Nanos, timeout: Nanos) -> Option<RequestStage> {
        self.since().filter(|since| now.since(*since) > timeout).and_then(|_| self.stage())
    }
}
