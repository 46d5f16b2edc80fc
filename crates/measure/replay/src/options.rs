//! Options that several kinds of this crate have.

use fathom_model::{OptionDoc, Settings, ValueKind};

use crate::timing::Timing;

pub(crate) const KEYS: OptionDoc = OptionDoc {
    name: "keys",
    value: ValueKind::File,
    default: None,
    help: "key log of the client (SSLKEYLOGFILE), by which connections over TLS in a capture are decrypted",
};
pub(crate) const SPEED: OptionDoc = OptionDoc {
    name: "speed",
    value: ValueKind::Text,
    default: None,
    help: "2x: twice as fast as recorded; max: each request when the one before it is answered; default: 1x",
};
pub(crate) const RATE: OptionDoc = OptionDoc {
    name: "rate",
    value: ValueKind::Rate,
    default: None,
    help: "requests per second, in the recorded order, instead of the recorded times",
};
/// The connections, or flows of UDP, at the same time.
pub(crate) const CONNECTIONS: OptionDoc = OptionDoc {
    name: "connections",
    value: ValueKind::Count(1, 1_000_000),
    default: None,
    help: "most connections at the same time; default: 4096, and 64 with --speed max",
};
pub(crate) const COPIES: OptionDoc = OptionDoc {
    name: "copies",
    value: ValueKind::Count(1, 10_000),
    default: Some("1"),
    help: "send each connection so many times, each on connections of its own",
};
pub(crate) const PORTS: OptionDoc = OptionDoc {
    name: "ports",
    value: ValueKind::Text,
    default: None,
    help: "send only what went to these ports, such as 80,8080, or to a port of an address: 192.0.2.9:80",
};
pub(crate) const SESSIONS: OptionDoc = OptionDoc {
    name: "sessions",
    value: ValueKind::Text,
    default: None,
    help: "share of the recorded connections to send, chosen at random by the seed, such as 10%",
};

/// The most connections at the same time, unless [`CONNECTIONS`] says otherwise.
pub(crate) const CONNECTIONS_AS_RECORDED: u64 = 4096;
/// The same if connections follow each other as fast as they can.
const CONNECTIONS_AS_ANSWERED: u64 = 64;

/// The value of [`CONNECTIONS`].
pub(crate) fn connections(settings: &Settings, timing: Timing) -> u64 {
    let usual = if timing == Timing::AsAnswered { CONNECTIONS_AS_ANSWERED } else { CONNECTIONS_AS_RECORDED };
    settings.count(CONNECTIONS.name).unwrap_or(usual)
}

/// How often each request is sent.
pub(crate) fn n_copies(settings: &Settings) -> usize {
    usize::try_from(settings.count(COPIES.name).unwrap_or(1)).unwrap_or(usize::MAX)
}
