//! The frames of a load: Ethernet, IPv4 or IPv6, and TCP, all but a few fields the same in every frame.

use std::net::{IpAddr, SocketAddr};

use fathom_model::MacAddress;
use fathom_wire::ChecksumSum;

use crate::machine::{Send, Step, WINDOW, flag};

/// The bytes of an Ethernet header.
pub const ETHERNET: i16 = 14;
/// The bytes of a TCP header without options.
pub const TCP_HEADER: i16 = 20;
/// The protocol number of TCP.
pub const PROTOCOL: u8 = 6;
/// The time to live, or hop limit, of our packets.
pub(crate) const HOPS: u8 = 64;
/// The largest segment that we take: that of Ethernet's MTU without options.
pub const SEGMENT_MAX: [u16; 2] = [1460, 1440];

/// Where the fields of an IP header without options or extension headers are, from the start of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The Ethernet type.
    pub ethertype: u16,
    /// The bytes of the IP header.
    pub header: i16,
    /// The field with the length of the packet, or of what follows the header.
    pub length: i16,
    /// The bytes of the header that this field counts.
    pub counted: i16,
    /// The time to live, or hop limit: the byte beside the protocol.
    pub hops: i16,
    /// The protocol, or next header.
    pub protocol: i16,
    /// The source address.
    pub source: i16,
    /// The destination address.
    pub destination: i16,
    /// The bytes of an address.
    pub address: i16,
}

impl Layout {
    const V4: Self = Self {
        ethertype: 0x0800,
        header: 20,
        length: 16,
        counted: 20,
        hops: 22,
        protocol: 23,
        source: 26,
        destination: 30,
        address: 4,
    };
    const V6: Self = Self {
        ethertype: 0x86dd,
        header: 40,
        length: 18,
        counted: 0,
        hops: 21,
        protocol: 20,
        source: 22,
        destination: 38,
        address: 16,
    };

    /// The layout of packets to or from an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Where the TCP header is.
    #[must_use]
    pub const fn tcp(&self) -> i16 {
        ETHERNET + self.header
    }

    /// Whether it is IPv4, whose header has a checksum.
    #[must_use]
    pub const fn is_v4(&self) -> bool {
        self.header == Self::V4.header
    }
}

/// The two ends of a load and what its frames have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The server.
    pub server: SocketAddr,
    /// The Ethernet address that leads to it.
    pub next_hop: MacAddress,
    /// The Ethernet address of the device.
    pub own: MacAddress,
    /// The request.
    pub request: Vec<u8>,
}

impl Ends {
    /// The bytes behind the TCP header of what is sent, and its flags.
    #[must_use]
    pub fn tail(&self, send: Send, sack: (u32, u32)) -> (Vec<u8>, u8) {
        match send {
            Send::Nothing => (Vec::new(), 0),
            Send::Syn => (self.syn_options().to_vec(), flag::SYN),
            Send::Ack if sack.0 == sack.1 => (Vec::new(), flag::ACK),
            Send::Ack => {
                let [from, to] = [sack.0, sack.1].map(u32::to_be_bytes);
                ([SACK_START.to_be_bytes(), from, to].concat(), flag::ACK)
            }
            Send::Request => (self.request.clone(), flag::ACK | flag::PSH),
            Send::Fin => (Vec::new(), flag::FIN | flag::ACK),
            Send::Reset => (Vec::new(), flag::RST),
        }
    }

    /// The options of a SYN: the largest segment and selective acknowledgements (RFC 9293 section 3.2, RFC 2018).
    #[must_use]
    pub fn syn_options(&self) -> [u8; 8] {
        let [high, low] = SEGMENT_MAX[usize::from(self.server.is_ipv6())].to_be_bytes();
        [2, 4, high, low, 1, 1, 4, 2]
    }

    /// The fourth word of the TCP header: its length, flags and window.
    #[must_use]
    pub fn header_word(send: Send, n_options: usize, flags: u8) -> u32 {
        let options = if send == Send::Request { 0 } else { n_options };
        let words = u32::try_from(5 + options / 4).expect("a header has at most 15 words");
        words << 28 | u32::from(flags) << 16 | WINDOW
    }

    /// The IP header of a packet with so many bytes behind it, with a checksum of zero.
    #[must_use]
    pub fn ip_header(&self, from: IpAddr, n_segment: u16) -> Vec<u8> {
        let layout = Layout::of(self.server.ip());
        let length = (n_segment + layout.counted.unsigned_abs()).to_be_bytes();
        let fixed = if layout.is_v4() {
            [&[0x45, 0], length.as_slice(), &[0, 0, 0x40, 0, HOPS, PROTOCOL, 0, 0]].concat()
        } else {
            [&[0x60, 0, 0, 0], length.as_slice(), &[PROTOCOL, HOPS]].concat()
        };
        [fixed, octets(from), octets(self.server.ip())].concat()
    }

    /// The frame of a step, from an address and port of ours.
    #[must_use]
    pub fn frame(&self, step: &Step, from: SocketAddr) -> Vec<u8> {
        let layout = Layout::of(self.server.ip());
        let (tail, flags) = self.tail(step.send, step.sack);
        let mut frame = [&self.next_hop.0[..], &self.own.0, &layout.ethertype.to_be_bytes()].concat();
        let n_segment = u16::try_from(tail.len()).expect("a segment is short") + TCP_HEADER.unsigned_abs();
        let mut header = self.ip_header(from.ip(), n_segment);
        if layout.is_v4() {
            let sum = ChecksumSum::default().add_bytes(&header);
            header[10..12].copy_from_slice(&sum.checksum().to_be_bytes());
        }
        frame.extend(header);
        let at = frame.len();
        frame.extend(from.port().to_be_bytes().into_iter().chain(self.server.port().to_be_bytes()));
        for word in [step.sequence, step.acknowledgement, Self::header_word(step.send, tail.len(), flags), 0] {
            frame.extend(word.to_be_bytes());
        }
        frame.extend(tail);
        // The pseudo-header of RFC 9293 section 3.1 and RFC 8200 section 8.1.
        let sum = ChecksumSum::default().add_bytes(&octets(from.ip())).add_bytes(&octets(self.server.ip()));
        let sum = sum.add_word(PROTOCOL.into()).add_word(n_segment).add_bytes(&frame[at..]);
        frame[at + 16..at + 18].copy_from_slice(&sum.checksum().to_be_bytes());
        frame
    }
}

/// The start of the options with one block of a selective acknowledgement: padding, kind and length (RFC 2018 section 3).
pub const SACK_START: u32 = 0x0101_050a;

/// The bytes of an address.
#[must_use]
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
