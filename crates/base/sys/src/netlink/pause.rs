//! Pause frames of Ethernet devices, from the kernel's `ethtool` family of generic netlink (Linux 5.9).
//!
//! Follows `Documentation/networking/ethtool-netlink.rst`, `PAUSE_GET`. Needs no privilege.

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::{
    Error, Result,
    netlink::message::{DUMP, GENERIC_HEADER, MessageBody, NetlinkRequest, NetlinkSocket, attribute},
};

/// `ETHTOOL_MSG_PAUSE_GET`.
const PAUSE_GET: u8 = 21;
/// `ETHTOOL_A_PAUSE_HEADER` and `ETHTOOL_A_PAUSE_STATS`.
const PAUSE_HEADER: u16 = 1;
const PAUSE_STATISTICS: u16 = 5;
/// `ETHTOOL_A_HEADER_DEV_NAME` and `ETHTOOL_A_HEADER_FLAGS`.
const HEADER_NAME: u16 = 2;
const HEADER_FLAGS: u16 = 3;
/// `ETHTOOL_FLAG_STATS`: the reply has counters too.
const WITH_STATISTICS: u32 = 1 << 2;
/// `ETHTOOL_A_PAUSE_STAT_TX_FRAMES` and `ETHTOOL_A_PAUSE_STAT_RX_FRAMES`.
const FRAMES_SENT: u16 = 2;
const FRAMES_RECEIVED: u16 = 3;

/// The pause frames of a device since its driver began to count (IEEE 802.3 annex 31B).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseFrames {
    /// The interface.
    pub interface: String,
    /// Frames received: the other end asked this one to stop. Absent if the driver does not count them.
    pub received: Option<u64>,
    /// Frames sent: this end asked the other one to stop. Absent if the driver does not count them.
    pub sent: Option<u64>,
}

/// Reads the pause frames of all devices of a network namespace.
#[derive(Debug)]
pub struct PauseReader {
    socket: NetlinkSocket,
    family: u16,
}

impl PauseReader {
    /// Opens a reader of the network namespace of the calling thread.
    ///
    /// # Errors
    /// `ENOENT` before Linux 5.6, or without `CONFIG_ETHTOOL_NETLINK`.
    pub fn open() -> Result<Self> {
        let open = || -> std::io::Result<Self> {
            let mut socket = NetlinkSocket::open(NETLINK_GENERIC)?;
            let family = socket.family("ethtool")?;
            Ok(Self { socket, family })
        };
        open().map_err(|error| Error::new("netlink(ethtool)", error))
    }

    /// Returns the counts of the devices whose drivers have pause frames; most virtual ones have none.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn frames(&mut self) -> Result<Vec<PauseFrames>> {
        let header = MessageBody::default().put(HEADER_FLAGS, &WITH_STATISTICS.to_ne_bytes());
        let question = MessageBody::of([PAUSE_GET, 1, 0, 0]).nest(PAUSE_HEADER, &header);
        let answers = self.socket.ask(NetlinkRequest(self.family, DUMP, question));
        let answers = answers.map_err(|error| Error::new("netlink(ethtool PAUSE_GET)", error))?;
        Ok(answers.iter().filter_map(|answer| frames_of(answer.get(GENERIC_HEADER..)?)).collect())
    }
}

/// Returns the counts of one device; `None` if its driver has none.
fn frames_of(attributes: &[u8]) -> Option<PauseFrames> {
    let name = attribute(attribute(attributes, PAUSE_HEADER)?, HEADER_NAME)?;
    let interface = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    let statistics = attribute(attributes, PAUSE_STATISTICS)?;
    let count = |kind| Some(u64::from_ne_bytes(attribute(statistics, kind)?.try_into().ok()?));
    let (received, sent) = (count(FRAMES_RECEIVED), count(FRAMES_SENT));
    (received.is_some() || sent.is_some()).then_some(PauseFrames { interface, received, sent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_device_are_read_and_one_without_has_none() {
        let header = MessageBody::default().text(HEADER_NAME, "enp3s0f0");
        let statistics = MessageBody::default().put(FRAMES_SENT, &7_u64.to_ne_bytes());
        let with = |statistics: &MessageBody| {
            let body = MessageBody::default().nest(PAUSE_HEADER, &header).nest(PAUSE_STATISTICS, statistics);
            frames_of(body.bytes())
        };
        let expected = PauseFrames { interface: "enp3s0f0".to_owned(), received: None, sent: Some(7) };
        assert_eq!(with(&statistics), Some(expected));
        assert_eq!(with(&MessageBody::default()), None, "a driver without counters");
        assert_eq!(frames_of(MessageBody::default().nest(PAUSE_HEADER, &header).bytes()), None);
        assert_eq!(frames_of(&[8, 0, 1]), None);
    }

    #[test]
    fn this_kernel_answers_and_its_loopback_pauses_nothing() {
        let mut reader = match PauseReader::open() {
            Err(error) if error.errno() == Some(libc::ENOENT) => {
                return fathom_testkit::skip("needs the ethtool family of generic netlink");
            }
            opened => opened.unwrap(),
        };
        assert!(reader.frames().unwrap().iter().all(|frames| frames.interface != "lo"));
    }
}
