//! The TCP segment in an IP packet, or why there is none.

use std::net::SocketAddr;

use etherparse::{TcpSlice, TransportSlice, ip_number};

use crate::{
    CapturedFrame,
    counts::PacketClass,
    ip_packet::{IpPacket, ip_packet},
};

/// A segment, as far as it was captured (RFC 9293 section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// The sequence number of the first byte of the payload, behind a SYN.
    pub(crate) sequence: u32,
    /// The next byte that its sender expects, if it says so.
    pub(crate) acknowledged: Option<u32>,
    pub(crate) is_syn: bool,
    pub(crate) is_fin: bool,
    pub(crate) is_reset: bool,
    /// The captured part of the payload.
    pub(crate) payload: &'a [u8],
    /// The bytes of the payload that were sent and not captured.
    pub(crate) n_cut: usize,
}

impl Segment<'_> {
    /// Whether it was sent with payload, captured or not.
    pub(crate) const fn has_payload(&self) -> bool {
        !self.payload.is_empty() || self.n_cut > 0
    }

    /// The class of its packet if it has no payload.
    pub(crate) const fn class_without_payload(&self) -> PacketClass {
        if self.is_fin || self.is_reset {
            PacketClass::Close
        } else if self.is_syn {
            PacketClass::Handshake
        } else {
            PacketClass::Acknowledgement
        }
    }
}

/// Returns the segment in a frame, or the class of a frame without one.
pub(crate) fn segment<'a>(frame: &CapturedFrame<'a>) -> Result<Segment<'a>, PacketClass> {
    let ip = ip_packet(frame)?;
    match &ip.transport {
        Some(TransportSlice::Tcp(tcp)) => Ok(read(tcp, &ip)),
        None if ip.protocol == ip_number::TCP => Err(ip.broken),
        _ => Err(PacketClass::NotTcp),
    }
}

fn read<'a>(tcp: &TcpSlice<'a>, ip: &IpPacket<'a>) -> Segment<'a> {
    Segment {
        source: SocketAddr::new(ip.source, tcp.source_port()),
        destination: SocketAddr::new(ip.destination, tcp.destination_port()),
        sequence: tcp.sequence_number().wrapping_add(u32::from(tcp.syn())),
        acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
        is_syn: tcp.syn(),
        is_fin: tcp.fin(),
        is_reset: tcp.rst(),
        payload: tcp.payload(),
        n_cut: ip.n_cut,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::{ETHERNET, LinkType};

    fn frame(link: LinkType, bytes: &[u8], original_length: usize) -> CapturedFrame<'_> {
        CapturedFrame { number: 1, time: None, link, bytes, original_length }
    }

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64).tcp(1000, 80, 7, 512).ack(9);
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    #[test]
    fn the_payload_is_known_where_the_capture_cuts_and_where_ethernet_pads() {
        let padded = [&[0; 12][..], &[8, 0], &packet(b"abc"), &[0; 3]].concat();
        let found = segment(&frame(ETHERNET, &padded, padded.len())).unwrap();
        assert_eq!((found.payload, found.n_cut, found.sequence, found.acknowledged), (&b"abc"[..], 0, 7, Some(9)));
        assert_eq!((found.source.to_string(), found.destination.port()), ("198.18.0.1:1000".to_owned(), 80));
        let cut = segment(&frame(ETHERNET, &padded[..56], padded.len())).unwrap();
        assert_eq!((cut.payload, cut.n_cut), (&b"ab"[..], 1));
    }

    #[test]
    fn every_packet_without_a_segment_has_a_class() {
        let raw = LinkType(101);
        let whole = packet(b"abc");
        for end in 1..40 {
            assert_eq!(segment(&frame(raw, &whole[..end], 43)), Err(PacketClass::CutHeader), "{end}");
        }
        assert_eq!(segment(&frame(raw, &whole[..10], 10)), Err(PacketClass::Malformed));
        let mut fragment = whole.clone();
        fragment[6] = 0x20;
        assert_eq!(segment(&frame(raw, &fragment, 43)), Err(PacketClass::Fragment));
        let mut udp = Vec::new();
        PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(53, 53).write(&mut udp, &[0; 9]).unwrap();
        assert_eq!(segment(&frame(raw, &udp, udp.len())), Err(PacketClass::NotTcp));
        assert_eq!(segment(&frame(raw, &[0x10], 1)), Err(PacketClass::NotIp));
        assert_eq!(segment(&frame(LinkType(105), &whole, 43)), Err(PacketClass::UnknownLink));
    }
}
