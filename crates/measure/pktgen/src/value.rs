//! Words used in the values of several pktgen parameters.

use std::{fmt, str::FromStr};

/// A size and its weight, as in `570,4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeWeight {
    /// The length of a packet in bytes, without the FCS.
    pub size: u64,
    /// Its relative weight, or a number of packets.
    pub weight: u64,
}

/// Where packets enter the kernel's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XmitMode {
    /// At the driver, bypassing the queueing discipline.
    StartXmit,
    /// At the network stack, as if they had been received.
    NetifReceive,
    /// At the queueing discipline.
    QueueXmit,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagState {
    /// `flag NAME`.
    On,
    /// `flag !NAME`.
    Off,
}

/// A text that is not a keyword of pktgen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not {expected}")]
pub struct WordError {
    word: String,
    expected: &'static str,
}

impl WordError {
    pub(super) fn new(word: &str, expected: &'static str) -> Self {
        Self { word: word.to_owned(), expected }
    }
}

/// The values of `flag`, apart from `FLOW_RND`, which is the opposite of `FLOW_SEQ`.
///
/// The kernel's documentation mentions `NODE_ALLOC`, which the kernel does not know: it calls that flag `NODE`.
pub const FLAGS: &[&str] = &[
    "IPV6",
    "IPSRC_RND",
    "IPDST_RND",
    "TXSIZE_RND",
    "UDPSRC_RND",
    "UDPDST_RND",
    "UDPCSUM",
    "NO_TIMESTAMP",
    "MPLS_RND",
    "QUEUE_MAP_RND",
    "QUEUE_MAP_CPU",
    "FLOW_SEQ",
    "IPSEC",
    "MACSRC_RND",
    "MACDST_RND",
    "VID_RND",
    "SVID_RND",
    "NODE",
    "SHARED",
];

impl XmitMode {
    /// The keywords of the parameter.
    const WORDS: [(Self, &'static str); 3] =
        [(Self::StartXmit, "start_xmit"), (Self::NetifReceive, "netif_receive"), (Self::QueueXmit, "queue_xmit")];

    /// The keyword in pktgen's status. It can differ from the one that sets the mode, and is `None` for the default.
    pub(super) const fn shown(self) -> Option<&'static str> {
        match self {
            Self::StartXmit => None,
            Self::NetifReceive => Some("netif_receive"),
            Self::QueueXmit => Some("xmit_queue"),
        }
    }
}

impl fmt::Display for XmitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(mode, _)| mode == self).map_or("", |(_, word)| word);
        f.pad(word)
    }
}

impl FromStr for XmitMode {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let mut words = Self::WORDS.iter().copied().chain([(Self::QueueXmit, "xmit_queue")]);
        let mode = words.find(|(_, word)| *word == text).map(|(mode, _)| mode);
        mode.ok_or_else(|| WordError::new(text, "start_xmit, netif_receive or queue_xmit"))
    }
}

impl fmt::Display for SizeWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.size, self.weight)
    }
}

impl FromStr for SizeWeight {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let parsed = text.split_once(',').and_then(|(size, weight)| Some((size.parse().ok()?, weight.parse().ok()?)));
        let (size, weight) = parsed.ok_or_else(|| WordError::new(text, "SIZE,WEIGHT"))?;
        Ok(Self { size, weight })
    }
}

/// Adds a space after each, as pktgen prints lists.
pub(super) fn spaced(weights: &[SizeWeight]) -> String {
    weights.iter().fold(String::new(), |text, weight| text + &weight.to_string() + " ")
}
