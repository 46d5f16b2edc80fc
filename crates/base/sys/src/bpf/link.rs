//! XDP programs attached to devices for the lifetime of a guard.

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

const ATTACH_XDP: u32 = 37;

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

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}
