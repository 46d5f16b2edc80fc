//! Flow rules: which packets belong to which group of targets, looked up rule by rule or by an index.

mod byte_match;
mod indexed;
mod protocol;
mod rule;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::classify::Packet;

pub use byte_match::{ByteMatch, ByteMatchError};
use indexed::Index;
pub use protocol::{Protocol, ProtocolError};
pub use rule::{FlowRule, PortRange, RuleError};

/// How the rule of a packet is found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowLookup {
    /// Rule by rule: the time grows with the number of rules.
    Linear,
    /// By a bit vector for each field (Lakshman and Stiliadis: High-speed policy-based packet forwarding, SIGCOMM 1998).
    #[default]
    Indexed,
}

impl FlowLookup {
    /// The words of all lookups.
    pub const WORDS: [&'static str; 2] = ["indexed", "linear"];
}

impl FromStr for FlowLookup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "indexed" => Ok(Self::Indexed),
            "linear" => Ok(Self::Linear),
            _ => Err(format!("`{text}` is not indexed or linear")),
        }
    }
}

impl fmt::Display for FlowLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Indexed => "indexed",
            Self::Linear => "linear",
        })
    }
}

/// The most rules: the index grows with the square of their number, to 16 MiB for each field.
pub const RULES_MAX: usize = 8192;

/// Rules in the order in which they are tried: the highest priority first, of equal ones the first name.
#[derive(Debug, Clone, Default)]
pub struct FlowRules {
    rules: Vec<FlowRule>,
    index: Option<Index>,
}

impl FlowRules {
    /// Puts the rules in order, and indexes them if the lookup needs it.
    ///
    /// # Panics
    /// With more than [`RULES_MAX`] rules.
    #[must_use]
    pub fn new(mut rules: Vec<FlowRule>, lookup: FlowLookup) -> Self {
        assert!(rules.len() <= RULES_MAX, "there are at most {RULES_MAX} rules");
        rules.sort_by(|one, other| other.priority.cmp(&one.priority).then_with(|| one.name.cmp(&other.name)));
        let index = (lookup == FlowLookup::Indexed).then(|| Index::new(&rules));
        Self { rules, index }
    }

    /// Returns the place of the rule that a packet belongs to.
    #[must_use]
    pub fn find(&self, packet: &Packet<'_>) -> Option<usize> {
        match &self.index {
            Some(index) => index.candidates(&packet.key).find(|place| self.rules[*place].matches_bytes(packet)),
            None => self.rules.iter().position(|rule| rule.matches(packet)),
        }
    }

    /// The rules in the order in which they are tried.
    #[must_use]
    pub fn rules(&self) -> &[FlowRule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests;
