//! UDP frames sent as one long frame that the kernel splits: a single system call and a single pass through the stack for many frames.
//!
//! A packet socket with `PACKET_VNET_HDR` states before each frame (`struct virtio_net_hdr`) how to split it: like a super-buffer with UDP
//! segmentation offload, `VIRTIO_NET_HDR_GSO_UDP_L4` of Linux 6.2. The kernel rewrites lengths, IPv4 identifications and checksums. This
//! module does not look into the frames. Needs `CAP_NET_RAW`.

use std::{
    io::IoSlice,
    os::fd::{AsFd, OwnedFd},
};

use fathom_model::units::Nanos;
use rustix::{
    event::PollFlags,
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};

pub use crate::socket::datagram::segments_of;
use crate::{
    Error, Result,
    packet::packet_socket::{OfferResult, open, set_option, wait},
    policy::FramePermit as Permit,
};

/// The parameters for splitting a long frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentCut {
    /// The offset of the UDP header.
    pub udp_at: u16,
    /// The payload bytes in each frame.
    pub payload: u16,
}

/// A socket that sends long frames out of one device; it never blocks.
#[derive(Debug)]
pub struct Sender {
    fd: OwnedFd,
    /// The headers before a frame that is split, and before one that is not.
    whole: [u8; HEADER],
    single: [u8; HEADER],
    /// The length of a frame that is not split.
    single_length: usize,
}

/// `struct virtio_net_hdr`.
const HEADER: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo header, and the kernel or the device adds the rest.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4` and `VIRTIO_NET_HDR_GSO_NONE`.
const CUT_UDP: u8 = 5;
const CUT_NOTHING: u8 = 0;
const UDP_HEADER: u16 = 8;
/// The offset of the checksum in a UDP header.
const CHECKSUM_AT: u16 = 6;
/// `PACKET_VNET_HDR`.
const VNET_HEADER: libc::c_int = 15;

/// The ten header bytes, in native byte order.
fn header(cut: SegmentCut, kind: u8) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let segment = if kind == CUT_NOTHING { 0 } else { cut.payload };
    bytes[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
    let words = [cut.udp_at + UDP_HEADER, segment, cut.udp_at, CHECKSUM_AT];
    for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

impl Sender {
    /// Opens a socket for a device in this network namespace.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`, or if there is no such device.
    pub fn open(ifindex: u32, cut: SegmentCut, _: &Permit) -> Result<Self> {
        // Protocol zero receives nothing, so there is no receive overhead.
        let fd = open(ifindex, 0)?;
        set_option(&fd, libc::SOL_PACKET, VNET_HEADER, "PACKET_VNET_HDR", 1)?;
        let single_length = usize::from(cut.udp_at) + usize::from(UDP_HEADER) + usize::from(cut.payload);
        Ok(Self { fd, whole: header(cut, CUT_UDP), single: header(cut, CUT_NOTHING), single_length })
    }

    /// Sends one long frame: headers that are valid for the whole frame, and the payloads of the single frames in sequence.
    ///
    /// The UDP checksum holds the sum of the pseudo header. [`OfferResult::Dropped`] means that the device dropped at least one of the
    /// frames; the device counts its drops.
    ///
    /// # Errors
    /// If the device is gone or down, and `EINVAL` before Linux 6.2.
    pub fn send(&self, frame: &[u8]) -> Result<OfferResult> {
        let ahead = if frame.len() > self.single_length { &self.whole } else { &self.single };
        let parts = [IoSlice::new(ahead), IoSlice::new(frame)];
        match sendmsg(&self.fd, &parts, &mut SendAncillaryBuffer::default(), SendFlags::DONTWAIT) {
            Ok(_) => Ok(OfferResult::Accepted(1)),
            Err(Errno::NOBUFS) => Ok(OfferResult::Dropped),
            Err(Errno::AGAIN | Errno::INTR) => Ok(OfferResult::Busy),
            Err(error) => Err(Error::new("sendmsg(AF_PACKET, PACKET_VNET_HDR)", error)),
        }
    }

    /// Waits until the socket accepts frames again, or until the timeout; returns whether it does.
    ///
    /// # Errors
    /// If the kernel lacks the memory to wait.
    pub fn wait(&self, timeout: Nanos) -> Result<bool> {
        wait(self.fd.as_fd(), PollFlags::OUT, timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn what_stands_in_front_says_where_the_frame_is_cut_and_what_is_summed() {
        let cut = SegmentCut { udp_at: 34, payload: 18 };
        assert_eq!(header(cut, CUT_UDP), [1, 5, 42, 0, 18, 0, 34, 0, 6, 0]);
        assert_eq!(header(cut, CUT_NOTHING), [1, 0, 42, 0, 0, 0, 34, 0, 6, 0]);
    }
}
