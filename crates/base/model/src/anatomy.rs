//! The anatomy of a unit of work: the parts of its time.
//!
//! Every part is a difference of two times of one host, so the clocks of two hosts need not agree. What neither host can tell is the
//! remainder: the path.

use serde::{Deserialize, Serialize};

use crate::{role::Side, units::Nanos};

/// A part of the time of a unit of work, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// From the call that sends to the queue of the interface.
    SendCall,
    /// In that queue, until the driver takes the packet.
    LocalQueue,
    /// From there to the arrival of the answer: the path, and the other host if it does not tell its own parts.
    Away,
    /// The wires and devices of the path, both ways.
    Path,
    /// From the arrival of a packet to the program that waits for it, without the wait for a core.
    WakeUp,
    /// The program could run, and its core ran something else (run delay).
    CoreWait,
    /// In the program, between a request and its answer.
    Program,
    /// From the time that a schedule said to the send, without the connect.
    Late,
    /// The connect, with TLS and a proxy if there is one.
    Connect,
    /// From the send of a request to the first byte of its answer, in older documents, which do not tell the path from the server.
    FirstByte,
    /// The path without queues: the shortest round trip that the kernel has seen on the connection (`tcpi_min_rtt`), which is that of the
    /// handshake or shorter, and at most the time to the first byte. Through a proxy, that of the way to the proxy.
    #[serde(alias = "path-at-rest")]
    BaselineRtt,
    /// The rest of the time to the first byte: the server, and all that the request or its answer waits for on its way.
    Server,
    /// From the first byte to the last.
    Download,
}

impl Part {
    /// Whether it is at one end, and not between the two.
    #[must_use]
    pub const fn is_at_one_end(self) -> bool {
        matches!(self, Self::SendCall | Self::LocalQueue | Self::WakeUp | Self::CoreWait | Self::Program | Self::Late)
    }
}

/// The times of one unit of work at one end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SampledUnit {
    /// Its number in its connection, the same at both ends.
    pub number: u64,
    /// The length of each part, in the order of the connection's parts.
    pub spans_ns: Vec<Nanos>,
}

/// Some of the units of work of one connection, as one end saw them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SampledConnection {
    /// The address of this end.
    pub local: String,
    /// The address of the other end.
    pub remote: String,
    /// What each unit consists of at this end, in the order of time.
    pub parts: Vec<Part>,
    /// The units.
    pub units: Vec<SampledUnit>,
    /// The number of further units that the kernel or the driver did not tell all times of.
    pub n_incomplete: u64,
}

impl SampledConnection {
    /// Units of all connections of a side, of which the other end tells nothing.
    #[must_use]
    pub fn of_all(parts: &[Part], units: Vec<SampledUnit>) -> Self {
        let (local, remote) = (String::new(), String::new());
        Self { local, remote, parts: parts.to_vec(), units, n_incomplete: 0 }
    }
}

/// One part of the anatomy of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AnatomyPart {
    /// The part.
    pub part: Part,
    /// The end that it is at; absent for the path between the ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// Its mean length in the units of the middle tenth, by their whole length.
    pub median_ns: Nanos,
    /// Its mean length in the slowest hundredth; absent if that is fewer than ten units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_ns: Option<Nanos>,
}

/// The parts of the time of a test's units of work, for a usual unit and for a slow one. The parts of each add up to the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Anatomy {
    /// The number of units behind it: a sample of all.
    pub n_units: u64,
    /// The parts, in the order of time.
    pub parts: Vec<AnatomyPart>,
    /// The median length of all units, sampled or not: the difference to that of the sample is what sampling costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_median_ns: Option<Nanos>,
}

impl Anatomy {
    /// The whole length of a usual unit.
    #[must_use]
    pub fn median(&self) -> Nanos {
        self.parts.iter().fold(Nanos::ZERO, |sum, part| sum + part.median_ns)
    }

    /// Returns the largest part of a usual unit, with its length. What is of one kind at both ends is one part of two places if only the two
    /// together are half of the unit.
    #[must_use]
    pub fn largest(&self) -> Option<(Vec<&AnatomyPart>, Nanos)> {
        let whole = self.median();
        let largest = self.parts.iter().max_by_key(|part| part.median_ns)?;
        let is_half = |time: Nanos| time > Nanos::ZERO && time >= whole / 2;
        let of_kind = |kind: Part| {
            let parts: Vec<&AnatomyPart> = self.parts.iter().filter(|part| part.part == kind).collect();
            let time = parts.iter().fold(Nanos::ZERO, |sum, part| sum + part.median_ns);
            (parts, time)
        };
        let of_both = self.parts.iter().map(|part| of_kind(part.part)).max_by_key(|(_, time)| *time);
        let of_both = of_both.filter(|(_, time)| !is_half(largest.median_ns) && is_half(*time));
        Some(of_both.unwrap_or_else(|| (vec![largest], largest.median_ns)))
    }

    /// The whole length of a slow unit.
    #[must_use]
    pub fn slow(&self) -> Option<Nanos> {
        self.parts.iter().try_fold(Nanos::ZERO, |sum, part| Some(sum + part.slow_ns?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(parts: &[(Part, Option<Side>, u64)]) -> (Vec<Part>, u64) {
        let part = |(part, side, micros): &(Part, Option<Side>, u64)| AnatomyPart {
            part: *part,
            side: *side,
            median_ns: Nanos::from_micros(*micros),
            slow_ns: None,
        };
        let anatomy = Anatomy { n_units: 100, parts: parts.iter().map(part).collect(), all_median_ns: None };
        let (parts, time) = anatomy.largest().unwrap();
        (parts.iter().map(|part| part.part).collect(), time.0 / 1000)
    }

    #[test]
    fn what_is_of_one_kind_at_both_ends_is_one_part_if_only_both_together_are_half() {
        let (near, far) = (Some(Side::Initiator), Some(Side::Responder));
        let with = |path, wake_up| {
            largest(&[
                (Part::SendCall, near, 5),
                (Part::Path, None, path),
                (Part::WakeUp, far, wake_up),
                (Part::SendCall, far, 5),
                (Part::WakeUp, near, wake_up),
            ])
        };
        assert_eq!(with(20, 21), (vec![Part::WakeUp, Part::WakeUp], 42));
        assert_eq!(with(100, 21), (vec![Part::Path], 100), "half by itself");
        assert_eq!(with(40, 20), (vec![Part::Path], 40), "both together are less than half");
    }
}
