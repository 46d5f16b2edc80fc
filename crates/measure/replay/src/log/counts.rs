//! What became of the lines of a log: each is counted once.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;
use serde::Serialize;

use crate::{
    counts::{AnswerFate, count_name},
    exchange::RecordedExchange,
};

/// What became of a line. Each line has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LineFate {
    /// Its request is whole, and can be sent again.
    Whole,
    /// Its request had a body, which is not in the log, or may have had one.
    BodyNotLogged,
    /// The server logged a connection on which no request came.
    NoRequest,
    /// What came was no HTTP.
    OtherProtocol,
    /// Its request is not as RFC 9112 says, or not all its bytes can be told from the log.
    Malformed,
    /// CONNECT: it asks for a tunnel.
    Tunnel,
    /// The connection changed to another protocol with it.
    Upgrade,
    /// It is earlier than requests that were given already.
    OutOfOrder,
    /// It has no time that can be read.
    NoTime,
    /// Its time is later than the log can have been written.
    Future,
    /// It is not in the format of the log.
    OtherFormat,
    /// It is longer than is kept.
    TooLong,
    /// It is a part of a longer line, which ends in a later one.
    Part,
    /// It has no character.
    Empty,
}

impl LineFate {
    /// The words that follow a number of such lines.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Whole => "whole, can be sent again",
            Self::BodyNotLogged => "with a body that is not in the log",
            Self::NoRequest => "connections without a request",
            Self::OtherProtocol => "of another protocol, such as TLS",
            Self::Malformed => "malformed",
            Self::Tunnel => "for a tunnel (CONNECT)",
            Self::Upgrade => "for another protocol (upgrade)",
            Self::OutOfOrder => "too far out of order",
            Self::NoTime => "without a time",
            Self::Future => "with a time in the future",
            Self::OtherFormat => "not in the format of the log",
            Self::TooLong => "longer than 1 MiB",
            Self::Part => "parts of longer lines",
            Self::Empty => "empty",
        }
    }
}

/// Everything that was counted in a log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LogCounts {
    pub lines: BTreeMap<LineFate, u64>,
    /// Answers to whole requests.
    pub answers: BTreeMap<AnswerFate, u64>,
    /// Whole requests by method.
    pub methods: BTreeMap<String, u64>,
    /// Whole requests by the host that they name.
    pub hosts: BTreeMap<String, u64>,
    /// Answers to whole requests by status.
    pub statuses: BTreeMap<u16, u64>,
    /// The connections that whole requests were divided among.
    pub n_connections: u64,
    /// The time of the first whole request, since 1970.
    #[serde(rename = "first_ns")]
    pub first: Option<Nanos>,
    /// The time of the last one.
    #[serde(rename = "last_ns")]
    pub last: Option<Nanos>,
}

impl LogCounts {
    pub(super) fn count_line(&mut self, fate: LineFate) {
        *self.lines.entry(fate).or_default() += 1;
    }

    /// Counts lines of the file that are parts of the next line that is counted.
    pub(super) fn count_parts(&mut self, n: u64) {
        if n > 0 {
            *self.lines.entry(LineFate::Part).or_default() += n;
        }
    }

    pub(super) fn count_exchange(&mut self, exchange: &RecordedExchange, method: &[u8], host: &[u8]) {
        self.count_line(LineFate::Whole);
        *self.answers.entry(exchange.answer_fate).or_default() += 1;
        if let Some(logged) = &exchange.logged {
            *self.statuses.entry(logged.status).or_default() += 1;
        }
        count_name(&mut self.methods, method);
        count_name(&mut self.hosts, host);
        self.first.get_or_insert(exchange.first_byte);
        self.last = Some(exchange.first_byte);
    }

    /// The number of all lines.
    #[must_use]
    pub fn n_lines(&self) -> u64 {
        self.lines.values().sum()
    }
}
