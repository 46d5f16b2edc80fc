//! The ICMP transport of a host without `CAP_NET_RAW`: echo requests only, through a socket for which the kernel writes the
//! headers.
//!
//! Arriving packets get back the IP header that they had, as far as the kernel reports it, so no other file needs to know the
//! difference.

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6Header};
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    policy::{Destination, Policy},
    socket::{
        echo::{EchoHeader, EchoReply, EchoSocket},
        raw_ip,
        timestamping::KernelClockOffset,
    },
};

use super::{
    driver::{CapturedPacket, ProbeTransport, SendOutcome},
    raw::allowed_destination,
    reply::HOPS_UNKNOWN,
};

/// The default limit of a socket without privileges (`net.core.rmem_default`).
const BUFFER: Bytes = Bytes(212_992);
/// The header of an ICMP error, in front of the quoted packet.
const ERROR_HEADER: usize = 8;

/// Sends echo requests, and receives the replies and errors.
#[derive(Debug)]
pub struct EchoTransport {
    socket: EchoSocket,
    source: IpAddr,
    destination: IpAddr,
    to: Destination,
    epoch: KernelClockOffset,
}

impl EchoTransport {
    /// Opens a transport from a local address to one host.
    ///
    /// # Errors
    /// `EACCES` if no group of the process is in `net.ipv4.ping_group_range`.
    pub fn open(source: IpAddr, destination: IpAddr, policy: &Policy) -> fathom_sys::Result<Self> {
        let to = allowed_destination(destination, policy)?;
        Ok(Self { socket: EchoSocket::open(source, BUFFER)?, source, destination, to, epoch: KernelClockOffset::now() })
    }

    /// Returns the identifier of all requests, which overrides the one in the packet.
    ///
    /// # Errors
    /// `getsockname`, in practice never.
    pub fn identifier(&self) -> fathom_sys::Result<u16> {
        self.socket.identifier()
    }

    fn header_length(&self) -> usize {
        if self.destination.is_ipv4() { Ipv4Header::MIN_LEN } else { Ipv6Header::LEN }
    }

    fn protocol(&self) -> IpNumber {
        if self.destination.is_ipv4() { IpNumber::ICMP } else { IpNumber::IPV6_ICMP }
    }

    fn at(&mut self, arrival: &EchoReply) -> Nanos {
        arrival.at.and_then(|at| self.epoch.of_packet(at)).unwrap_or_else(clock::now)
    }

    /// Rebuilds an ICMP error as it was on the wire: two IP headers and the ICMP header around the part of the request that the
    /// kernel keeps.
    fn icmp_error(&mut self, room: &mut [u8]) -> fathom_sys::Result<Option<CapturedPacket>> {
        let ip = self.header_length();
        let quoted = 2 * ip + ERROR_HEADER;
        let Some(complaint) = self.socket.complaint(&mut room[quoted..])? else { return Ok(None) };
        let arrival = complaint.arrival;
        let whole = quoted + arrival.length;
        let outer = ip_header(self.protocol(), (arrival.from, self.source), whole - ip, arrival.hops_left);
        // The kernel does not keep the TTL of the request, and nothing uses it.
        let inner = ip_header(self.protocol(), (self.source, self.destination), arrival.length, None);
        let number = complaint.number.to_be_bytes();
        let error = [&[complaint.kind, complaint.code, 0, 0][..], &number].concat();
        room[..quoted].copy_from_slice(&[outer, error, inner].concat());
        Ok(Some(CapturedPacket::Incoming(whole, self.at(&arrival))))
    }
}

/// Returns the IP header of a message between two hosts, with the TTL if it is known.
pub(super) fn ip_header(
    protocol: IpNumber,
    (from, to): (IpAddr, IpAddr),
    length: usize,
    hops_left: Option<u8>,
) -> Vec<u8> {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    let hops_left = hops_left.unwrap_or(HOPS_UNKNOWN);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(length, hops_left, protocol, from.octets(), to.octets());
            header.map(|header| header.to_bytes().to_vec()).unwrap_or_default()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                payload_length: length,
                next_header: protocol,
                hop_limit: hops_left,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            header.to_bytes().to_vec()
        }
        _ => Vec::new(),
    }
}

impl ProbeTransport for EchoTransport {
    type Error = fathom_sys::Error;

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, packet: &[u8]) -> fathom_sys::Result<SendOutcome> {
        let header = if self.destination.is_ipv4() {
            EchoHeader { hops: packet[8], traffic_class: packet[1] }
        } else {
            EchoHeader { hops: packet[7], traffic_class: packet[0] << 4 | packet[1] >> 4 }
        };
        let message = &packet[self.header_length()..];
        let at = clock::now();
        Ok(match self.socket.send(message, header, &self.to)? {
            raw_ip::RawSendResult::Taken => SendOutcome::Sent(at),
            raw_ip::RawSendResult::TooLong => SendOutcome::TooLong,
            raw_ip::RawSendResult::NoRoom => SendOutcome::WouldBlock,
            raw_ip::RawSendResult::NoWay => SendOutcome::NoRoute(at),
        })
    }

    fn receive(&mut self, room: &mut [u8]) -> fathom_sys::Result<Option<CapturedPacket>> {
        if let Some(complaint) = self.icmp_error(room)? {
            return Ok(Some(complaint));
        }
        let ip = self.header_length();
        let Some(arrival) = self.socket.receive(&mut room[ip..])? else { return Ok(None) };
        let header = ip_header(self.protocol(), (arrival.from, self.source), arrival.length, arrival.hops_left);
        room[..ip].copy_from_slice(&header);
        Ok(Some(CapturedPacket::Incoming(ip + arrival.length, self.at(&arrival))))
    }

    fn wait(&mut self, until: Nanos) -> fathom_sys::Result<()> {
        let left = until.since(clock::now());
        if left > Nanos::ZERO {
            self.socket.wait(left)?;
        }
        Ok(())
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        self.socket.drops().ok().map(u64::from)
    }
}
