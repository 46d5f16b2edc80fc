//! Whole frames of fathom's, made once and numbered in place.

use std::net::Ipv4Addr;

use super::{ETHERTYPE_IPV4, Ethernet, FrameSize, Ipv4, MacAddress, Mark, MarkPlace, PROTOCOL_UDP, Sum, Udp};

/// One end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Its device.
    pub mac: MacAddress,
    /// Its host.
    pub address: Ipv4Addr,
    /// Its port.
    pub port: u16,
}

/// Frames that differ in their number only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Whom they are from.
    pub source: Endpoint,
    /// Whom they are for.
    pub destination: Endpoint,
    /// The trial they belong to.
    pub trial: u32,
    /// Which flow of the trial this is, from 0.
    pub number: u16,
}

/// A frame with number 0, and what is needed to give copies of it other numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    bytes: Vec<u8>,
    sum: Sum,
}

const CHECKSUM: usize = MarkPlace::START - 2;
/// As many routers as RFC 1812 section 5.3.1 lets a packet pass by default.
const TIME_TO_LIVE: u8 = 64;

impl Template {
    /// Builds a UDP datagram with a mark, padded with zeros to the size.
    ///
    /// # Panics
    /// Never: every [`FrameSize`] has room for headers and mark, and its lengths fit in 16 bits.
    #[must_use]
    pub fn new(flow: &Flow, size: FrameSize) -> Self {
        let length = size.without_checksum();
        let total_length = u16::try_from(length - Ethernet::LENGTH).expect("a frame has at most 9018 bytes");
        let (source, destination) = (flow.source, flow.destination);
        let ethernet = Ethernet { destination: destination.mac, source: source.mac, ethertype: ETHERTYPE_IPV4 };
        let ipv4 = Ipv4 {
            total_length,
            time_to_live: TIME_TO_LIVE,
            protocol: PROTOCOL_UDP,
            source: source.address,
            destination: destination.address,
        };
        let header = u16::try_from(Ipv4::LENGTH).expect("a header has 20 bytes");
        let mut udp =
            Udp { source: source.port, destination: destination.port, length: total_length - header, checksum: 0 };
        let mark = Mark { tag: Mark::tag_of(flow.trial), flow: flow.number.into(), sequence: 0, sent: 0 }.bytes();
        let sum = udp.sum(source.address, destination.address).with(&mark);
        udp.checksum = Udp::checksum(sum);
        let mut bytes = [&ethernet.bytes()[..], &ipv4.bytes(), &udp.bytes(), &mark].concat();
        bytes.resize(length, 0);
        Self { bytes, sum }
    }

    /// The frame with number 0, without the checksum of the wire.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives a copy of this frame another number, and the UDP checksum that goes with it.
    #[inline]
    pub fn number(&self, frame: &mut [u8], sequence: u64) {
        let [_, _, number @ ..] = sequence.to_be_bytes();
        // The template's own number is zero, so its sum only lacks the words of this one.
        let checksum = Udp::checksum(self.sum.with(&number));
        let at = MarkPlace::START + Mark::SEQUENCE;
        frame[at..at + number.len()].copy_from_slice(&number);
        frame[CHECKSUM..MarkPlace::START].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Bytes;

    use super::*;

    fn flow() -> Flow {
        let end = |last, port| Endpoint {
            mac: MacAddress([2, 0, 0, 0, 0, last]),
            address: Ipv4Addr::new(198, 18, 0, last),
            port,
        };
        Flow { source: end(1, 40_000), destination: end(2, 7_700), trial: 7, number: 3 }
    }

    #[test]
    fn a_numbered_copy_is_parsed_to_what_it_was_made_of_and_its_checksum_is_right() {
        for size in [64, 65, 1518, 9018] {
            let template = Template::new(&flow(), FrameSize::new(Bytes(size)).unwrap());
            for sequence in [0, 1, 0xffff, 0x1_0000, 0xbeef_0bad_cafe, u64::MAX >> 16] {
                let mut frame = template.bytes().to_vec();
                template.number(&mut frame, sequence);
                let (ethernet, packet) = Ethernet::parse(&frame).unwrap();
                let (ipv4, datagram) = Ipv4::parse(packet).unwrap();
                let (udp, payload) = Udp::parse(datagram).unwrap();
                assert_eq!(
                    (ethernet.destination, ipv4.destination),
                    (flow().destination.mac, flow().destination.address)
                );
                assert_eq!((udp.source, udp.destination), (40_000, 7_700));
                assert_eq!(Mark::parse(payload), Some(Mark { tag: Mark::tag_of(7), sequence, flow: 3, sent: 0 }));
                let sum = udp.sum(ipv4.source, ipv4.destination).with(payload);
                assert_eq!(Udp::checksum(sum), udp.checksum, "number {sequence} at {size} bytes");
            }
        }
    }
}
