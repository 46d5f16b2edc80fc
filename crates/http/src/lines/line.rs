//! One connection, from nothing until it is ready for requests.

use fathom_model::units::Nanos;

use super::Stage;
use crate::dial::{self, Channel};

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Without a socket.
    Shut,
    /// Waiting for an address since then.
    Resolving(Nanos),
    /// Connecting since then.
    Connecting(Nanos),
    /// Connected since then, and busy with what comes before HTTP: a proxy, TLS.
    Opening(Nanos),
    /// Ready for requests.
    Open,
}

/// A connection, as far as it is not HTTP.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) state: State,
    pub(crate) channel: Channel,
    /// Which of the servers it is for.
    pub(crate) route: u16,
    /// How long it took to come about; whoever has told it takes it.
    pub(crate) took: Nanos,
}

impl Line {
    pub(crate) fn new(route: u16) -> Self {
        Self { state: State::Shut, channel: Channel::default(), route, took: Nanos::ZERO }
    }

    /// Whether requests may be sent.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether it is on its way from shut to open.
    pub(crate) fn is_opening(&self) -> bool {
        !matches!(self.state, State::Open | State::Shut)
    }

    /// What is under way while it is opening.
    pub(crate) fn stage(&self) -> Option<Stage> {
        match self.state {
            State::Shut | State::Open => None,
            State::Resolving(_) => Some(Stage::Resolve),
            State::Connecting(_) => Some(Stage::Connect),
            State::Opening(_) => Some(self.channel.cut().map_or(Stage::Connect, dial::Fault::stage)),
        }
    }

    /// Since when that is under way.
    pub(crate) fn since(&self) -> Option<Nanos> {
        match self.state {
            State::Shut | State::Open => None,
            State::Resolving(since) | State::Connecting(since) | State::Opening(since) => Some(since),
        }
    }

    /// What takes longer than `timeout` while it is opening.
    pub(crate) fn overdue(&self, now: Nanos, timeout: Nanos) -> Option<Stage> {
        self.since().filter(|since| now.since(*since) > timeout).and_then(|_| self.stage())
    }
}
