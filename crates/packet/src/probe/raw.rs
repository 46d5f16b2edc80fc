//! The line of a host with `CAP_NET_RAW`: packets as they are, and the kernel's own time for each.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    netlink::Netlink,
    policy::{Destination, Policy},
    raw_ip::{self, Broadcast, Direction, Ear, Sender},
    wire_time::Epoch,
};

use super::course::{Handed, Line, Passed};

/// Room for the answers of some milliseconds of a flood.
const BUFFER: Bytes = Bytes(8 << 20);

/// Sends through a raw socket and hears through a packet socket.
#[derive(Debug)]
pub struct RawLine {
    sender: Sender,
    ear: Ear,
    to: Destination,
    epoch: Epoch,
}

impl RawLine {
    /// Opens both for one destination.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`; the policy does not allow it.
    pub fn open(destination: IpAddr, broadcast: Broadcast, policy: &Policy) -> fathom_sys::Result<Self> {
        let to = permitted(destination, policy)?;
        let sender = Sender::open(destination, broadcast)?;
        let ear = Ear::open(destination, BUFFER)?;
        Ok(Self { sender, ear, to, epoch: Epoch::now() })
    }

    /// Sends through one device only.
    ///
    /// # Errors
    /// `ENODEV` when there is none of this name.
    pub fn bind_device(&self, name: &str) -> fathom_sys::Result<()> {
        self.sender.bind_device(name)
    }
}

impl Line for RawLine {
    type Error = fathom_sys::Error;

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, packet: &[u8]) -> fathom_sys::Result<Handed> {
        // Taken before the call, because the answer may be there when it returns.
        let at = clock::now();
        Ok(match self.sender.send(packet, &self.to)? {
            raw_ip::Handed::Taken => Handed::Taken(at),
            raw_ip::Handed::TooLong => Handed::TooLong,
            raw_ip::Handed::NoRoom => Handed::NoRoom,
            raw_ip::Handed::NoWay => Handed::NoWay(at),
        })
    }

    fn receive(&mut self, room: &mut [u8]) -> fathom_sys::Result<Option<Passed>> {
        Ok(self.ear.receive(room)?.map(|passing| {
            let at = passing.at.map_or_else(clock::now, |at| self.epoch.monotonic(at));
            match passing.direction {
                Direction::Out => Passed::Out(passing.length, at),
                Direction::In => Passed::In(passing.length, at),
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

    fn n_unheard(&self) -> Option<u64> {
        self.ear.drops().ok().map(u64::from)
    }
}

/// The host that packets are sent to, if that is allowed.
pub(super) fn permitted(destination: IpAddr, policy: &Policy) -> fathom_sys::Result<Destination> {
    policy.permit(SocketAddr::new(destination, 0)).map_err(|refused| fathom_sys::Error::new("sendto", refused))
}

/// The own address from which the kernel would send to another; nothing is sent for it.
///
/// # Errors
/// When there is no route.
pub fn source_towards(destination: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if destination.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Any port does: a datagram socket that connects only looks the route up.
    socket.connect((destination, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// The device that has an own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnDevice {
    /// Its name.
    pub name: String,
    /// The longest packet that it takes.
    pub mtu: u16,
}

impl OwnDevice {
    /// Looks it up.
    ///
    /// # Errors
    /// When the kernel does not tell its links.
    pub fn of(address: IpAddr) -> fathom_sys::Result<Option<Self>> {
        let mut netlink = Netlink::open()?;
        // The loopback device has more addresses than it is given.
        let is_it = |candidate: IpAddr| {
            candidate == address
                || address.is_loopback() && candidate.is_loopback() && candidate.is_ipv4() == address.is_ipv4()
        };
        let index = netlink.addresses()?.into_iter().find(|(_, candidate)| is_it(*candidate)).map(|(index, _)| index);
        let link = netlink.links()?.into_iter().find(|link| Some(link.index) == index);
        Ok(link.map(|link| Self { name: link.name, mtu: u16::try_from(link.mtu_bytes).unwrap_or(u16::MAX) }))
    }
}
