//! The XDP capabilities of a device's driver, from the kernel's `netdev` family of generic netlink (Linux 6.3).
//!
//! Follows `Documentation/netlink/specs/netdev.yaml`. A veth reports what its other end currently allows.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::{
    Error, Result,
    netlink::message::{ACKNOWLEDGE, GENERIC_HEADER, MessageBody, NetlinkRequest, NetlinkSocket, attribute},
};

/// The features of a device at the time of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// Whether frames can be redirected to it: it has `ndo_xdp_xmit` and everything that this needs.
    #[must_use]
    pub const fn takes_redirected(self) -> bool {
        self.0 & 1 << 2 != 0
    }
}

/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX` and `NETDEV_A_DEV_XDP_FEATURES`.
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;

/// Returns the features of a device in this network namespace; `None` if the kernel does not report them.
///
/// # Errors
/// `ENODEV` if there is no such device.
pub fn xdp_features(ifindex: u32) -> Result<Option<XdpFeatures>> {
    let ask = || -> io::Result<Option<XdpFeatures>> {
        let mut generic = NetlinkSocket::open(NETLINK_GENERIC)?;
        let family = match generic.family("netdev") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            family => family?,
        };
        let device = MessageBody::of([GET_DEVICE, 1, 0, 0]).put(DEVICE_INDEX, &ifindex.to_ne_bytes());
        let answers = generic.ask(NetlinkRequest(family, ACKNOWLEDGE, device))?;
        let features =
            |answer: &Vec<u8>| attribute(answer.get(GENERIC_HEADER..)?, DEVICE_FEATURES)?.first_chunk().copied();
        Ok(answers.iter().find_map(features).map(|bytes| XdpFeatures(u64::from_ne_bytes(bytes))))
    };
    ask().map_err(|error| Error::new(format!("NETDEV_CMD_DEV_GET(device {ifindex})"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_no_redirected_frames_and_a_device_that_does_not_exist_is_named() {
        // A kernel before 6.3 reports nothing.
        let Some(loopback) = xdp_features(1).unwrap() else { return };
        assert!(!loopback.takes_redirected());
        assert_eq!(xdp_features(1_000_000).unwrap_err().errno(), Some(libc::ENODEV));
    }
}
