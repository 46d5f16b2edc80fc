//! One connection, from nothing until it is ready for requests.

use fathom_model::units::Nanos;

use super::RequestStage;
use crate::target::{self, Channel};

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectState {
    /// Without a socket.
    Closed,
    /// Waiting for an address since then.
    Resolving(Nanos),
    /// Connecting since then.
    Connecting(Nanos),
    /// Connected since then, and busy with what comes before HTTP: a proxy, TLS.
    Negotiating(Nanos),
    /// Ready for requests.
    Open,
}

/// A connection, as far as it is not HTTP.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) state: ConnectState,
    pub(crate) channel: Channel,
    /// Which of the servers it is for.
    pub(crate) upstream: u16,
    /// How long it took to come about; whoever has told it takes it.
    pub(crate) connect_time: Nanos,
}

impl Connection {
    pub(crate) fn new(route: u16) -> Self {
        Self { state: ConnectState::Closed, channel: Channel::default(), upstream: route, connect_time: Nanos::ZERO }
    }

    /// Whether requests may be sent.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state == ConnectState::Open
    }

    /// Whether it is on its way from shut to open.
    pub(crate) fn is_opening(&self) -> bool {
        !matches!(self.state, ConnectState::Open | ConnectState::Closed)
    }

    /// What is under way while it is opening.
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

    /// Since when that is under way.
    pub(crate) fn since(&self) -> Option<Nanos> {
        match self.state {
            ConnectState::Closed | ConnectState::Open => None,
            ConnectState::Resolving(since) | ConnectState::Connecting(since) | ConnectState::Negotiating(since) => {
                Some(since)
            }
        }
    }

    /// What takes longer than `timeout` while it is opening.
    pub(crate) fn overdue(&self, now: Nanos, timeout: Nanos) -> Option<RequestStage> {
        self.since().filter(|since| now.since(*since) > timeout).and_then(|_| self.stage())
    }
}
