//! An IP protocol as text.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::classify::protocol;

/// An IP protocol, written as `tcp` or as its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Protocol(pub u8);

const PROTOCOLS: [(&str, u8); 7] = [
    ("icmp", protocol::ICMP),
    ("tcp", protocol::TCP),
    ("udp", protocol::UDP),
    ("dccp", protocol::DCCP),
    ("icmpv6", protocol::ICMPV6),
    ("sctp", protocol::SCTP),
    ("udplite", protocol::UDP_LITE),
];

/// A text that is no protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("protocol `{0}`: write tcp, udp, sctp, dccp, udplite, icmp, icmpv6 or a number up to 255")]
pub struct ProtocolError(pub(super) String);

impl FromStr for Protocol {
    type Err = ProtocolError;
    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        let number = named.or_else(|| text.parse().ok());
        number.map(Self).ok_or_else(|| ProtocolError(text.to_owned()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PROTOCOLS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl TryFrom<String> for Protocol {
    type Error = ProtocolError;
    fn try_from(text: String) -> Result<Self, ProtocolError> {
        text.parse()
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> Self {
        protocol.to_string()
    }
}
