//! What the program and the balancer share: the tables, the ways to the targets, and the counters.

use fathom_model::MacAddress;
use fathom_sys::{
    Result,
    bpf::{Array, PerCpuArray},
};

/// Why the program passes a packet for a virtual address up to the queues. The number is the row of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// It is part of a datagram. In IPv6 a fragment is of another protocol.
    Fragment,
    /// Its IPv4 header has options, or an impossible length.
    Options,
    /// It is neither TCP nor UDP: ICMP errors and IPv6 extension headers are among these.
    OtherProtocol,
    /// It has no hop left, which its sender has to be told.
    LastHop,
    /// It is shorter than it says, or too short.
    Malformed,
    /// The table has no target for it.
    NoTarget,
    /// The Ethernet address of the target is not known, or its link takes no frames.
    NoWay,
    /// It is longer than the link to the target carries.
    TooLong,
    /// Flow rules or defects decide, which the program does not know.
    LeftToQueue,
}

impl Passed {
    pub(super) const ALL: [Self; 9] = [
        Self::Fragment,
        Self::Options,
        Self::OtherProtocol,
        Self::LastHop,
        Self::Malformed,
        Self::NoTarget,
        Self::NoWay,
        Self::TooLong,
        Self::LeftToQueue,
    ];

    /// Whether only IPv4 packets are passed up for it.
    pub(super) const fn is_of_ipv4(self) -> bool {
        matches!(self, Self::Fragment | Self::Options)
    }

    /// The word of its counter.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Fragment => "fragment",
            Self::Options => "ip_options",
            Self::OtherProtocol => "other_protocol",
            Self::LastHop => "last_hop",
            Self::Malformed => "malformed",
            Self::NoTarget => "no_target",
            Self::NoWay => "no_way",
            Self::TooLong => "too_long",
            Self::LeftToQueue => "left_to_queue",
        }
    }
}

/// The most targets of all groups that the program knows; packets for others pass up. A counter of one takes 8 bytes for each processor.
pub(super) const TARGETS_MAX: u32 = 4096;

/// The way of frames to a target, by one IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// The index of the link.
    pub(super) link: u32,
    /// The longest frame that the link carries, in bytes.
    pub(super) frame_max: u32,
    /// The Ethernet address of the target.
    pub(super) destination: MacAddress,
    /// The Ethernet address of the link.
    pub(super) source: MacAddress,
}

impl Way {
    /// The row of a way as the program reads it; zeros without one.
    pub(super) fn row(way: Option<&Self>) -> [u64; 3] {
        let Some(Self { link, frame_max, destination, source }) = way else { return [0; 3] };
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&link.to_ne_bytes());
        bytes[4..8].copy_from_slice(&frame_max.to_ne_bytes());
        bytes[8..14].copy_from_slice(&destination.0);
        bytes[14..20].copy_from_slice(&source.0);
        let word = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("three words"));
        [word(0), word(8), word(16)]
    }
}

/// All maps of a program.
#[derive(Debug)]
pub(super) struct Maps {
    /// One number: 0 passes everything up, 1 and 2 choose the first or the second half of `places`. One byte of it changes, so that no
    /// program reads a part of a change.
    pub(super) active: Array<1>,
    /// Two tables: for each place the number of its target from one, or 0.
    pub(super) places: Array<1>,
    /// For each target two ways, of IPv4 and of IPv6.
    pub(super) ways: Array<3>,
    /// The packets of each target.
    pub(super) target_counts: PerCpuArray<1>,
    /// The packets that were passed up, by cause.
    pub(super) passed: PerCpuArray<1>,
}

impl Maps {
    pub(super) fn create(table_size: u32) -> Result<Self> {
        let n_causes = u32::try_from(Passed::ALL.len()).expect("there are few causes");
        Ok(Self {
            active: Array::create("fathom_active", 1)?,
            places: Array::create("fathom_places", 2 * table_size)?,
            ways: Array::create("fathom_ways", 2 * TARGETS_MAX)?,
            target_counts: PerCpuArray::create("fathom_targets", TARGETS_MAX)?,
            passed: PerCpuArray::create("fathom_passed", n_causes)?,
        })
    }
}
