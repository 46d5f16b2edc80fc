//! The address of an IP socket in the kernel's format.

use std::{
    ffi::c_int,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
};

/// The size of `struct sockaddr_in6`, the longer of the two.
const SIZE: usize = 28;

/// An address in the kernel's format, with the alignment of `struct sockaddr_in6`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct SocketName(pub(super) [u8; SIZE]);

impl SocketName {
    /// The length of the room that the kernel is given.
    pub(super) const LENGTH_MAX: libc::socklen_t = 28;
    /// The address of no datagram.
    pub(super) const NOWHERE: Self = Self([0; SIZE]);

    /// The length of its family's structure, which the kernel needs.
    pub(super) fn length(&self) -> libc::socklen_t {
        /// The length of `struct sockaddr_in`.
        const LENGTH_V4: libc::socklen_t = 16;
        let family = c_int::from(u16::from_ne_bytes([self.0[0], self.0[1]]));
        if family == libc::AF_INET { LENGTH_V4 } else { Self::LENGTH_MAX }
    }

    /// Parses a `struct sockaddr_in` or `sockaddr_in6`.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let name = &self.0;
        let family = c_int::from(u16::from_ne_bytes(*name.first_chunk()?));
        let port = u16::from_be_bytes(*name[2..].first_chunk()?);
        match family {
            libc::AF_INET => Some((*name[4..].first_chunk::<4>()?, port).into()),
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(*name[8..].first_chunk::<16>()?);
                let scope = u32::from_ne_bytes(*name[24..].first_chunk()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }
}
