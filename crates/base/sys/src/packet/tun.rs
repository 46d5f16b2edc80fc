//! A tun device: packets that a program writes arrive at this host as if they came from a wire.
//!
//! The device belongs to the network namespace of the thread that opens it and goes with its descriptor. Needs `CAP_NET_ADMIN`. See
//! `Documentation/networking/tuntap.rst`.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSlice, Write as _},
    os::fd::AsRawFd as _,
};

use crate::{Error, Result};

/// Packets without a link header, each behind a `struct virtio_net_hdr`, on a device that nobody else has.
const FLAGS: libc::c_int = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const CHECKSUM_OPEN: u8 = 1;
/// The length of `struct virtio_net_hdr`.
const HEADER: usize = 10;

/// The place of a checksum that the kernel is to calculate: from where, and where it goes, in bytes from the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenChecksum {
    /// The first byte that it covers: the start of the transport header.
    pub start: u16,
    /// The place of the checksum behind `start`.
    pub offset: u16,
}

/// A tun device of this program.
#[derive(Debug)]
pub struct TunDevice {
    file: File,
}

impl TunDevice {
    /// Creates a device with this name, at most 15 bytes; it is down.
    ///
    /// # Errors
    /// `ENOENT` if there is no `/dev/net/tun`, `EPERM` without `CAP_NET_ADMIN`, `EBUSY` if the name is taken.
    pub fn create(name: &str) -> Result<Self> {
        let path = "/dev/net/tun";
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| Error::new(format!("open({path})"), error))?;
        // SAFETY: ifreq is plain old data, for which zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte of the name stays zero.
        for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        // The field has 16 bits, of which IFF_TUN_EXCL is the sign.
        let [low, high, ..] = FLAGS.to_le_bytes();
        request.ifr_ifru.ifru_flags = libc::c_short::from_le_bytes([low, high]);
        // SAFETY: the request outlives the call, which reads and writes only it.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if outcome < 0 { Err(Error::last(format!("ioctl(TUNSETIFF {name})"))) } else { Ok(Self { file }) }
    }

    /// Lets a packet arrive, given from its IP header on.
    ///
    /// # Errors
    /// `EIO` while the device is down, `EINVAL` for bytes that are no IP packet.
    pub fn inject(&self, packet: &[u8], checksum: Option<OpenChecksum>) -> Result<()> {
        let mut header = [0; HEADER];
        if let Some(OpenChecksum { start, offset }) = checksum {
            header[0] = CHECKSUM_OPEN;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
        let failed = |error: io::Error| Error::new("write(tun)", error);
        (&self.file).write_vectored(&[IoSlice::new(&header), IoSlice::new(packet)]).map(drop).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Netlink, namespace::NetNs};
    use fathom_testkit::or_skip;
    use std::net::UdpSocket;

    #[test]
    fn a_packet_that_is_written_arrives_and_the_device_goes_with_its_value() {
        let Some(namespace) = or_skip(NetNs::new(), Error::is_permission) else { return };
        namespace.enter_with(look).unwrap();
    }

    fn look() {
        let Some(tun) = or_skip(TunDevice::create("tun-test"), |error| error.errno() == Some(libc::ENOENT)) else {
            return;
        };
        assert_eq!(TunDevice::create("tun-test").unwrap_err().errno(), Some(libc::EBUSY));
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("tun-test").unwrap().index;
        netlink.add_address(index, "198.18.9.1".parse().unwrap(), 24).unwrap();
        netlink.set_up(index).unwrap();
        let to = UdpSocket::bind("198.18.9.1:4000").unwrap();
        to.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        // From 198.18.9.2 port 1000, with an IP checksum of its own and that of UDP open: the sum of the pseudo header.
        let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 9, 2, 198, 18, 9, 1];
        let sum = |bytes: &[u8]| {
            let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
        };
        let of_header = !sum(&packet);
        packet[10..12].copy_from_slice(&of_header.to_be_bytes());
        let pseudo = sum(&[&packet[12..20], &[0, 17, 0, 12]].concat());
        packet.extend([3, 232, 15, 160, 0, 12]);
        packet.extend(pseudo.to_be_bytes());
        packet.extend(b"tuns");
        tun.inject(&packet, Some(OpenChecksum { start: 20, offset: 6 })).unwrap();
        let mut room = [0; 10];
        let (length, from) = to.recv_from(&mut room).unwrap();
        assert_eq!((&room[..length], from.to_string().as_str()), (b"tuns".as_slice(), "198.18.9.2:1000"));
        drop(tun);
        assert!(netlink.link("tun-test").is_err());
    }
}
