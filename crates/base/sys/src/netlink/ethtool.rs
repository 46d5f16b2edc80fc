//! Properties of a network device: driver, queues, offloads, statistics; also switches offloads.
//!
//! Uses `ioctl(SIOCETHTOOL)`, which every driver since 2.6 supports and which needs no privilege for reading. The structures are those of
//! `linux/ethtool.h`, read by offset, with all numbers in native order.

use crate::{Error, Result};
use fathom_model::units::BitsPerSec;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const STXCSUM: u32 = 0x17;
const STSO: u32 = 0x1f;
const SGRO: u32 = 0x2c;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GLINKSETTINGS: u32 = 0x4c;

/// `ETH_SS_STATS` and `ETH_SS_FEATURES`: the lists of names.
const STATISTICS: u32 = 1;
const FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`: the padded length of every name.
const NAME_LEN: usize = 32;
/// More names than any driver has; a larger number is treated as invalid.
const NAMES_MAX: usize = 1 << 16;
/// Extra room after a reply with names or counters. Older kernels write as many names and counters as the driver has *now*, whatever the requested count, and
/// a driver gains some if queues are added. There is room for the maximum valid number; pages that are not written cost nothing.
const SLACK: usize = NAMES_MAX * NAME_LEN;
/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = u32::MAX;

/// The driver of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The driver's name, such as `veth`, `virtio_net` or `mlx5_core`.
    pub name: String,
    /// The driver's version, usually the kernel's.
    pub version: String,
    /// The version of the firmware, if the driver knows it.
    pub firmware: Option<String>,
    /// The bus address, such as `0000:01:00.0`; absent for a device without one.
    pub bus: Option<String>,
}

/// The number of queues in use and the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// The queues in use.
    pub current: Queues,
    /// The maximum number of queues.
    pub max: Queues,
}

/// Queues by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// For receiving.
    pub rx: u32,
    /// For sending.
    pub tx: u32,
    /// For other events, such as link changes.
    pub other: u32,
    /// For both directions with one interrupt.
    pub combined: u32,
}

/// The ring sizes of a device in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    /// Slots of a receive ring.
    pub rx: u32,
    /// The maximum size of a receive ring.
    pub rx_max: u32,
    /// Slots of a transmit ring.
    pub tx: u32,
    /// The maximum size of a transmit ring.
    pub tx_max: u32,
}

/// When a device raises an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coalescing {
    /// The longest wait after a received frame, in microseconds.
    pub rx_usecs: u32,
    /// The frames received meanwhile that end the wait; 0 if their number does not matter.
    pub rx_frames: u32,
    /// The longest wait after a sent frame, in microseconds.
    pub tx_usecs: u32,
    /// The frames sent meanwhile that end the wait.
    pub tx_frames: u32,
    /// Whether the driver adapts the receive values to the load.
    pub rx_adaptive: bool,
    /// Whether the driver adapts the send values to the load.
    pub tx_adaptive: bool,
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkMode {
    /// The speed; absent if the device has none or does not know it. A veth reports 10 Gbit/s, an arbitrary constant of its driver.
    pub speed: Option<BitsPerSec>,
    /// The duplex mode; absent if the device does not know it.
    pub duplex: Option<Duplex>,
}

/// Whether both ends of a link may send at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplex {
    /// One at a time, with collisions.
    Half,
    /// Both.
    Full,
}

/// Whether a device obeys and sends pause frames (IEEE 802.3 annex 31B).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseMode {
    /// Whether both ends agree on it by autonegotiation.
    pub autonegotiated: bool,
    /// Whether it stops if it is asked to.
    pub rx: bool,
    /// Whether it asks the other end to stop if it has no room.
    pub tx: bool,
}

/// A device feature that replaces work of the kernel, such as `tx-checksum-ipv4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name; `ethtool -k` shows some features under older names.
    pub name: String,
    /// Whether it is active.
    pub active: bool,
    /// Whether it can be switched: it is neither fixed nor unsupported.
    pub changeable: bool,
}

/// Work that a device or its driver may do for the network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of sent packets are computed after the stack.
    Checksums,
    /// Large TCP segments are split after the stack (TSO, all variants).
    Segmentation,
    /// Segments of one flow are merged before the stack (GRO); a veth with GRO polls its ring by NAPI.
    Merging,
}

impl Offload {
    /// The command that switches it.
    const fn command(self) -> u32 {
        match self {
            Self::Checksums => STXCSUM,
            Self::Segmentation => STSO,
            Self::Merging => SGRO,
        }
    }
}

/// Whether an offload is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadState {
    /// Active.
    On = 1,
    /// Inactive.
    Off = 0,
}

/// What some counters of a driver have grown by, summed over its queues.
#[derive(Debug)]
pub struct CounterGrowth {
    device: Device,
    endings: &'static [&'static str],
    /// The sum when it was opened.
    before: u64,
}

impl CounterGrowth {
    /// Starts with the counters of a device whose names have one of these endings; `None` if the driver has none of them.
    #[must_use]
    pub fn open(device: &str, endings: &'static [&'static str]) -> Option<Self> {
        let device = Device::open(device).ok()?;
        Some(Self { before: sum_of(&device, endings)?, device, endings })
    }

    /// The growth since then; that of a device that is gone is zero.
    #[must_use]
    pub fn count(&self) -> u64 {
        sum_of(&self.device, self.endings).map_or(0, |now| now.saturating_sub(self.before))
    }
}

fn sum_of(device: &Device, endings: &[&str]) -> Option<u64> {
    let statistics = device.statistics().ok()?;
    let is_meant = |name: &str| endings.iter().any(|end| name.ends_with(end));
    statistics.iter().filter(|(name, _)| is_meant(name)).map(|(_, count)| *count).reduce(u64::saturating_add)
}

/// A network device for ethtool requests.
#[derive(Debug)]
pub struct Device {
    socket: OwnedFd,
    name: String,
}

impl Device {
    /// Prepares requests to the device with this name in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `EINVAL` for an invalid device name. A missing device is reported by the first request.
    pub fn open(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(Error::new(format!("ethtool({name:?})"), Errno::INVAL));
        }
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| Error::new("socket(ethtool)", errno))?;
        Ok(Self { socket, name: name.to_owned() })
    }

    /// Returns the driver; `None` if there is no information, as for loopback.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn driver(&self) -> Result<Option<Driver>> {
        // ethtool_drvinfo: cmd, then 32 bytes each of driver, version, firmware and bus, then more.
        let Some(answer) = self.ask(GDRVINFO, &[0; 196])? else { return Ok(None) };
        let text = |index: usize| name_at(&answer, 4 + index * NAME_LEN);
        let known = |text: String| (!text.is_empty() && text != "N/A").then_some(text);
        Ok(Some(Driver { name: text(0), version: text(1), firmware: known(text(2)), bus: known(text(3)) }))
    }

    /// Returns the number of queues; `None` if the driver does not report it.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn channels(&self) -> Result<Option<Channels>> {
        let Some(answer) = self.ask(GCHANNELS, &[0; 36])? else { return Ok(None) };
        let queues = |at: usize| Queues {
            rx: number_at(&answer, at),
            tx: number_at(&answer, at + 4),
            other: number_at(&answer, at + 8),
            combined: number_at(&answer, at + 12),
        };
        Ok(Some(Channels { max: queues(4), current: queues(20) }))
    }

    /// Returns the ring sizes; `None` if the device has no rings.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn rings(&self) -> Result<Option<Rings>> {
        // ethtool_ringparam: cmd, the four maxima (rx, mini, jumbo, tx), then the four current values.
        let Some(answer) = self.ask(GRINGPARAM, &[0; 36])? else { return Ok(None) };
        let field = |index: usize| number_at(&answer, index * 4);
        Ok(Some(Rings { rx_max: field(1), tx_max: field(4), rx: field(5), tx: field(8) }))
    }

    /// Returns when the device raises interrupts; `None` if its driver does not tell.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn coalescing(&self) -> Result<Option<Coalescing>> {
        // ethtool_coalesce: cmd and 22 numbers, of which the first eight are four of receiving and four of sending, and the tenth and eleventh
        // say whether the driver adapts them.
        let Some(answer) = self.ask(GCOALESCE, &[0; 92])? else { return Ok(None) };
        let field = |index: usize| number_at(&answer, index * 4);
        Ok(Some(Coalescing {
            rx_usecs: field(1),
            rx_frames: field(2),
            tx_usecs: field(5),
            tx_frames: field(6),
            rx_adaptive: field(10) != 0,
            tx_adaptive: field(11) != 0,
        }))
    }

    /// Returns whether the device uses pause frames; `None` if its driver has none.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn pause(&self) -> Result<Option<PauseMode>> {
        // ethtool_pauseparam: cmd, autoneg, rx_pause, tx_pause.
        let Some(answer) = self.ask(GPAUSEPARAM, &[0; 16])? else { return Ok(None) };
        let is_on = |index: usize| number_at(&answer, index * 4) != 0;
        Ok(Some(PauseMode { autonegotiated: is_on(1), rx: is_on(2), tx: is_on(3) }))
    }

    /// Returns the speed and the duplex mode of the link; `None` if the device has no link settings.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn link_mode(&self) -> Result<Option<LinkMode>> {
        // ethtool_link_settings: cmd, speed in Mbit/s, 8 single bytes of which the last is the count of mask words. The kernel replies to a
        // first request with a count of 0 with the required count, negated.
        let Some(answer) = self.ask(GLINKSETTINGS, &[0; 48])? else { return Ok(None) };
        let words = usize::from(answer[LINK_MODE_WORDS].cast_signed().unsigned_abs());
        let mut question = vec![0; 48 + 3 * 4 * words];
        question[LINK_MODE_WORDS] = answer[LINK_MODE_WORDS].wrapping_neg();
        let Some(answer) = self.ask(GLINKSETTINGS, &question)? else { return Ok(None) };
        let megabits = number_at(&answer, 4);
        let is_known = megabits != 0 && megabits != SPEED_UNKNOWN;
        let speed = is_known.then(|| BitsPerSec::new(f64::from(megabits) * 1e6)).flatten();
        // `DUPLEX_HALF` and `DUPLEX_FULL`; 255 stands for an unknown one.
        let duplex = match answer[DUPLEX_AT] {
            0 => Some(Duplex::Half),
            1 => Some(Duplex::Full),
            _ => None,
        };
        Ok(Some(LinkMode { speed, duplex }))
    }

    /// Returns the features of the device, in the kernel's order.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn features(&self) -> Result<Vec<Feature>> {
        let names = self.names(FEATURES)?;
        let blocks = names.len().div_ceil(32);
        // ethtool_gfeatures: cmd, count of blocks, then per 32 features: available, requested, active, never changed.
        let mut question = vec![0; 8 + blocks * 16];
        put_number(&mut question, 4, blocks);
        let Some(answer) = self.ask(GFEATURES, &question)? else { return Ok(Vec::new()) };
        let feature = |(index, name): (usize, String)| {
            let block = 8 + index / 32 * 16;
            let bit = |field: usize| number_at(&answer, block + field * 4) >> (index % 32) & 1 == 1;
            Feature { name, active: bit(2), changeable: bit(0) && !bit(3) }
        };
        Ok(names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()).map(feature).collect())
    }

    /// Switches an offload on or off. Needs `CAP_NET_ADMIN` over the device's namespace.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no such offload.
    pub fn switch(&self, offload: Offload, to: OffloadState) -> Result<()> {
        // ethtool_value: cmd, data.
        let mut order = [0; 8];
        order[4..8].copy_from_slice(&(to as u32).to_ne_bytes());
        let done = self.ask(offload.command(), &order)?;
        done.map(drop)
            .ok_or_else(|| Error::new(format!("ethtool({}, {offload:?} {to:?})", self.name), Errno::OPNOTSUPP))
    }

    /// Returns the driver's own counters (`ethtool -S`), in its order; empty if it has none.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn statistics(&self) -> Result<Vec<(String, u64)>> {
        let names = self.names(STATISTICS)?;
        let mut question = vec![0; 8 + names.len() * 8];
        put_number(&mut question, 4, names.len());
        let Some(answer) = self.ask(GSTATS, &question)? else { return Ok(Vec::new()) };
        let value = |index: usize| counter_at(&answer, 8 + index * 8);
        Ok(names.into_iter().enumerate().map(|(index, name)| (name, value(index))).collect())
    }

    /// Returns one of a driver's lists of names.
    fn names(&self, set: u32) -> Result<Vec<String>> {
        // ethtool_sset_info: cmd, reserved, a mask of 64 bits, then the count for the single bit in the mask.
        let mut question = [0; 20];
        question[8..16].copy_from_slice(&(1_u64 << set).to_ne_bytes());
        let Some(answer) = self.ask(GSSET_INFO, &question)? else { return Ok(Vec::new()) };
        let is_known = answer[8..16] != [0; 8];
        let count = if is_known { usize::try_from(number_at(&answer, 16)).unwrap_or(usize::MAX) } else { 0 };
        if count == 0 || count > NAMES_MAX {
            return Ok(Vec::new());
        }
        let mut question = vec![0; 12 + count * NAME_LEN];
        question[4..8].copy_from_slice(&set.to_ne_bytes());
        put_number(&mut question, 8, count);
        let Some(answer) = self.ask(GSTRINGS, &question)? else { return Ok(Vec::new()) };
        Ok((0..count).map(|index| name_at(&answer, 12 + index * NAME_LEN)).collect())
    }

    /// Sends one request; returns `None` if the driver does not support it.
    fn ask(&self, command: u32, question: &[u8]) -> Result<Option<Vec<u8>>> {
        let length = question.len();
        let slack = if matches!(command, GSTRINGS | GSTATS) { SLACK } else { 0 };
        let mut message = vec![0; length + slack];
        message[..length].copy_from_slice(question);
        message[..4].copy_from_slice(&command.to_ne_bytes());
        // SAFETY: ifreq is plain old data, for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_data = message.as_mut_ptr().cast();
        // SAFETY: the request and the message outlive the call, and the message is as long as the command and its counts require, with
        // slack for names and counters that the driver may have gained since the counts were read.
        let outcome = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if outcome == 0 {
            message.truncate(length);
            return Ok(Some(message));
        }
        let error = Error::last(format!("ioctl(SIOCETHTOOL {command:#x}, {})", self.name));
        if error.errno() == Some(libc::EOPNOTSUPP) { Ok(None) } else { Err(error) }
    }
}

/// The offset of `duplex` in `ethtool_link_settings`.
const DUPLEX_AT: usize = 8;
/// The offset of `link_mode_masks_nwords` in `ethtool_link_settings`.
const LINK_MODE_WORDS: usize = 15;

fn number_at(message: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(message[at..at + 4].try_into().expect("4 bytes"))
}

fn counter_at(message: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"))
}

fn put_number(message: &mut [u8], at: usize, number: usize) {
    let number = u32::try_from(number).expect("bounded by NAMES_MAX");
    message[at..at + 4].copy_from_slice(&number.to_ne_bytes());
}

fn name_at(message: &[u8], at: usize) -> String {
    let bytes = &message[at..at + NAME_LEN];
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_LEN);
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_features_but_no_rings_no_speed_and_no_statistics() {
        let loopback = Device::open("lo").unwrap();
        let features = loopback.features().unwrap();
        let checksum = features.iter().find(|feature| feature.name == "tx-checksum-ip-generic").unwrap();
        assert!(checksum.active);
        assert!(features.iter().any(|feature| feature.name == "netns-local" || feature.name == "loopback"));
        assert_eq!(loopback.rings().unwrap(), None);
        assert_eq!(loopback.link_mode().unwrap(), None);
        assert_eq!(loopback.pause().unwrap(), None);
        assert_eq!(loopback.coalescing().unwrap(), None);
        assert_eq!(loopback.channels().unwrap(), None);
        assert!(loopback.statistics().unwrap().is_empty());
    }

    #[test]
    fn a_device_that_does_not_exist_is_named() {
        let error = Device::open("none").unwrap().driver().unwrap_err();
        assert_eq!(error.call, "ioctl(SIOCETHTOOL 0x3, none)");
        assert_eq!(error.errno(), Some(libc::ENODEV));
        assert!(Device::open("sixteen-bytes-at").is_err());
    }
}
