//! Programs attached to devices for the lifetime of a guard.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    Program,
    syscall::{LinkCreate, bpf_fd, descriptor},
};
use crate::{Error, Result};

/// The point in the receive path at which the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before any allocation for the frame.
    Native,
    /// In the network stack, for drivers without XDP support: works everywhere, but slowly.
    Generic,
}

/// An XDP program attached to a device; detached on drop, or by the kernel when the process dies.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
    mode: XdpMode,
}

/// `BPF_XDP` and `BPF_TCX_INGRESS`.
const ATTACH_XDP: u32 = 37;
const ATTACH_INGRESS: u32 = 46;

impl XdpLink {
    /// Attaches the program to a device in this network namespace.
    ///
    /// Needs `CAP_NET_ADMIN` and Linux 5.9.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver has no native mode, `EBUSY` if the device already has a program.
    pub fn attach(program: &Program, ifindex: u32, mode: XdpMode) -> Result<Self> {
        let mut attributes = LinkCreate {
            prog_fd: descriptor(program),
            target_ifindex: ifindex,
            attach_type: ATTACH_XDP,
            flags: match mode {
                XdpMode::Generic => 1 << 1,
                XdpMode::Native => 1 << 2,
            },
        };
        let call = || format!("bpf(BPF_LINK_CREATE) {} on device {ifindex} in {mode} mode", program.name());
        let fd = bpf_fd(&mut attributes).map_err(|error| Error::new(call(), error))?;
        Ok(Self { fd, mode })
    }

    /// The mode in which it runs.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<XdpLink> for OwnedFd {
    fn from(link: XdpLink) -> Self {
        link.fd
    }
}

/// A program at the ingress of the stack behind a device; detached on drop, or by the kernel when the process dies.
#[derive(Debug)]
pub struct IngressLink {
    fd: OwnedFd,
}

impl IngressLink {
    /// Attaches a program of [`super::ProgramType::Ingress`] behind those that a device in this network namespace has.
    ///
    /// Needs `CAP_NET_ADMIN` and Linux 6.6.
    ///
    /// # Errors
    /// `EINVAL` if the kernel has no such programs.
    pub fn attach(program: &Program, ifindex: u32) -> Result<Self> {
        let mut attributes =
            LinkCreate { prog_fd: descriptor(program), target_ifindex: ifindex, attach_type: ATTACH_INGRESS, flags: 0 };
        let call = || format!("bpf(BPF_LINK_CREATE) {} at the ingress of device {ifindex}", program.name());
        let fd = bpf_fd(&mut attributes).map_err(|error| Error::new(call(), error))?;
        Ok(Self { fd })
    }
}

impl From<IngressLink> for OwnedFd {
    fn from(link: IngressLink) -> Self {
        link.fd
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::{
        super::{
            Assembler, IngressAction, PerCpuArray, ProgramType,
            Register::{R0, R1, R10},
            privilege::or_skip,
        },
        *,
    };
    use crate::netlink::{Netlink, namespace::NetNs};

    const LOOPBACK: u32 = 1;

    #[test]
    fn a_program_at_the_ingress_sees_packets_until_its_link_is_dropped() {
        let Some(count) = or_skip(PerCpuArray::<1>::create("count", 1)) else { return };
        let mut a = Assembler::new();
        let missing = a.label();
        a.store(R10.word(-4), 0).look_up(&count, -4, missing).load(R1, R0.double(0)).add(R1, 1);
        a.store(R0.double(0), R1).bind(missing).give(IngressAction::Next);
        let program = Program::load(ProgramType::Ingress, "counting", &a.assemble()).unwrap();
        let Some(namespace) = or_skip(NetNs::new()) else { return };
        let counted = namespace.enter_with(|| {
            Netlink::open().unwrap().set_up(LOOPBACK).unwrap();
            let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            let exchange = || {
                near.send_to(b"seen", far.local_addr().unwrap()).unwrap();
                // It arrives: the program leaves it to the stack.
                far.recv(&mut [0; 8]).unwrap();
                count.sum(0).unwrap()[0]
            };
            let link = IngressLink::attach(&program, LOOPBACK).unwrap();
            let attached = [exchange(), exchange()];
            drop(link);
            (attached, exchange())
        });
        assert_eq!(counted.unwrap(), ([1, 2], 2));
    }
}
