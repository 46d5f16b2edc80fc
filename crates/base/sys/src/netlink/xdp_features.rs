//! The XDP capabilities of a device's driver, from the kernel's `netdev` family of generic netlink (Linux 6.3).
//!
//! Follows `Documentation/netlink/specs/netdev.yaml`. A veth reports what its other end currently allows.

use std::io;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use crate::{Error, Result};

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

// The control family, the only command of it used here, and its attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
// The same for the `netdev` family.
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;

const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// The netlink header and the generic netlink header after it.
const HEADERS: usize = 16 + 4;

/// Returns the features of a device in this network namespace; `None` if the kernel does not report them.
///
/// # Errors
/// `ENODEV` if there is no such device.
pub fn xdp_features(ifindex: u32) -> Result<Option<XdpFeatures>> {
    let failed = |error| Error::new(format!("NETDEV_CMD_DEV_GET(device {ifindex})"), error);
    let Some(family) = ask(CONTROL, GET_FAMILY, FAMILY_NAME, b"netdev\0").map_err(failed)? else { return Ok(None) };
    let family = attribute(&family, FAMILY_ID).and_then(|id| id.first_chunk()).copied().map(u16::from_ne_bytes);
    let Some(family) = family else { return Ok(None) };
    let device = ask(family, GET_DEVICE, DEVICE_INDEX, &ifindex.to_ne_bytes()).map_err(failed)?;
    let Some(device) = device else { return Err(failed(io::Error::from_raw_os_error(libc::ENODEV))) };
    let features = attribute(&device, DEVICE_FEATURES).and_then(|value| value.first_chunk()).copied();
    Ok(features.map(|bytes| XdpFeatures(u64::from_ne_bytes(bytes))))
}

/// Sends one request with one attribute; returns the attributes of the reply, or `None` if there is no such object.
fn ask(family: u16, command: u8, kind: u16, value: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let length = HEADERS + 4 + value.len();
    let short = |length: usize| u16::try_from(length).expect("a question is short");
    let mut message = Vec::with_capacity(length.next_multiple_of(4));
    message.extend_from_slice(&u32::from(short(length.next_multiple_of(4))).to_ne_bytes());
    message.extend_from_slice(&family.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    // The sequence number and the sender, which would distinguish several replies; then command and version.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&[command, 1, 0, 0]);
    message.extend_from_slice(&short(4 + value.len()).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(length.next_multiple_of(4), 0);
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&message, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let kind = answer.get(4..6).and_then(|bytes| bytes.first_chunk()).copied().map(u16::from_ne_bytes);
    if kind == Some(ERROR) {
        let code = answer.get(16..).and_then(|rest| rest.first_chunk()).copied().map_or(0, i32::from_ne_bytes);
        let is_unknown = [-libc::ENOENT, -libc::ENODEV, -libc::EOPNOTSUPP].contains(&code);
        return if is_unknown { Ok(None) } else { Err(io::Error::from_raw_os_error(-code)) };
    }
    Ok(Some(answer.get(HEADERS..).unwrap_or_default().to_vec()))
}

/// Returns the value of the first attribute of a type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        // The upper two bits specify the encoding of the value.
        if kind & 0x3fff == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_cut_ones_are_not() {
        let bytes = [5, 0, 7, 0, 0xaa, 0, 0, 0, 6, 0, 9, 0, 1, 2, 0, 0];
        assert_eq!(attribute(&bytes, 7), Some(&[0xaa][..]));
        assert_eq!(attribute(&bytes, 9), Some(&[1, 2][..]));
        assert_eq!(attribute(&bytes, 8), None);
        assert_eq!(attribute(&bytes[..13], 9), None);
        assert_eq!(attribute(&[0; 8], 9), None);
    }

    #[test]
    fn loopback_takes_no_redirected_frames_and_a_device_that_does_not_exist_is_named() {
        // A kernel before 6.3 reports nothing.
        let Some(loopback) = xdp_features(1).unwrap() else { return };
        assert!(!loopback.takes_redirected());
        assert_eq!(xdp_features(1_000_000).unwrap_err().errno(), Some(libc::ENODEV));
    }
}
