//! The transport of a host with `CAP_NET_RAW`: raw packets, with the kernel's own time for each.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    netlink::Netlink,
    policy::{Destination, Policy},
    socket::{
        raw_ip::{self, Broadcast, Direction, PacketListener, Sender},
        timestamping::KernelClockOffset,
    },
};

use super::driver::{CapturedPacket, ProbeTransport, SendOutcome};

/// Room for the answers of several milliseconds of a flood.
const BUFFER: Bytes = Bytes(8 << 20);

/// Sends through a raw socket and receives through a packet socket.
#[derive(Debug)]
pub struct RawTransport {
    sender: Sender,
    ear: PacketListener,
    to: Destination,
    epoch: KernelClockOffset,
}

impl RawTransport {
    /// Opens both sockets for one destination.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, or if the policy does not allow the destination.
    pub fn open(destination: IpAddr, broadcast: Broadcast, policy: &Policy) -> fathom_sys::Result<Self> {
        let to = allowed_destination(destination, policy)?;
        let sender = Sender::open(destination, broadcast)?;
        let ear = PacketListener::open(destination, BUFFER)?;
        Ok(Self { sender, ear, to, epoch: KernelClockOffset::now() })
    }

    /// Sends through one device only.
    ///
    /// # Errors
    /// `ENODEV` if there is no device of this name.
    pub fn bind_device(&self, name: &str) -> fathom_sys::Result<()> {
        self.sender.bind_device(name)
    }
}

impl ProbeTransport for RawTransport {
    type Error = fathom_sys::Error;

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, packet: &[u8]) -> fathom_sys::Result<SendOutcome> {
        // Read before the call, because the answer may have arrived when it returns.
        let at = clock::now();
        Ok(match self.sender.send(packet, &self.to)? {
            raw_ip::RawSendResult::Taken => SendOutcome::Sent(at),
            raw_ip::RawSendResult::TooLong => SendOutcome::TooLong,
            raw_ip::RawSendResult::NoRoom => SendOutcome::WouldBlock,
            raw_ip::RawSendResult::NoWay => SendOutcome::NoRoute(at),
        })
    }

    fn receive(&mut self, room: &mut [u8]) -> fathom_sys::Result<Option<CapturedPacket>> {
        Ok(self.ear.receive(room)?.map(|passing| {
            let at = passing.at.and_then(|at| self.epoch.of_packet(at));
            match passing.direction {
                Direction::Out => CapturedPacket::Outgoing(passing.length, at),
                Direction::In => CapturedPacket::Incoming(passing.length, at.unwrap_or_else(clock::now)),
            }
        }))
    }

    fn wait(&mut self, until: Nanos) -> fathom_sys::Result<()> {
        let left = until.since(clock::now());
        if left > Nanos::ZERO {
            self.ear.wait(left)?;
        }
        Ok(())
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        self.ear.drops().ok().map(u64::from)
    }
}

/// Returns the destination of packets, if the policy allows it.
pub(super) fn allowed_destination(destination: IpAddr, policy: &Policy) -> fathom_sys::Result<Destination> {
    policy.permit(SocketAddr::new(destination, 0)).map_err(|refused| fathom_sys::Error::new("sendto", refused))
}

/// Returns the local address from which the kernel would send to another. Sends no packet.
///
/// # Errors
/// If there is no route.
pub fn source_address_for(destination: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Any port works: connecting a datagram socket only looks up the route.
    socket.connect((destination, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The device with a local address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnDevice {
    pub name: String,
    /// In bytes.
    pub mtu: u16,
}

impl OwnDevice {
    /// Finds the device with this address.
    ///
    /// # Errors
    /// If the kernel does not list its links.
    pub fn of(address: IpAddr) -> fathom_sys::Result<Option<Self>> {
        let mut netlink = Netlink::open()?;
        // The loopback device answers on more addresses than those assigned to it.
        let is_it = |candidate: IpAddr| {
            candidate == address
                || address.is_loopback() && candidate.is_loopback() && candidate.is_ipv4() == address.is_ipv4()
        };
        let index = netlink.addresses()?.into_iter().find(|(_, candidate)| is_it(*candidate)).map(|(index, _)| index);
        let link = netlink.links()?.into_iter().find(|link| Some(link.index) == index);
        Ok(link.map(|link| Self { name: link.name, mtu: u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX) }))
    }
}
