//! The kernel's threaded NAPI, which decides the thread that polls a network device.
//!
//! Without it, a virtual device is polled on the sender's core by the sending thread, so that sender and receiver share that core and
//! neither is ever overloaded. The setting lasts as long as the device.

use rustix::{
    fs::{Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
};

use crate::{
    Error, Result,
    netlink::message::{DUMP, GENERIC_HEADER, MessageBody, NetlinkRequest, NetlinkSocket, attribute},
};
use netlink_sys::protocols::NETLINK_GENERIC;

/// A NAPI instance of a device, with its polling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    /// The index of its device.
    pub device: u32,
    /// The NAPI id, unique on the machine.
    pub id: u32,
    /// Its kernel thread, as seen from the initial PID namespace; absent if softirqs do the polling.
    pub thread: Option<u32>,
}

/// Makes kernel threads poll a device in the calling thread's network namespace.
///
/// `/sys` shows the devices of the namespace in which it was mounted, so this mounts a new, detached instance. Needs `CAP_SYS_ADMIN`
/// outside user namespaces, and Linux 5.12.
///
/// # Errors
/// `EPERM` without the privilege; `EOPNOTSUPP` if the device has no NAPI instance, such as a veth without GRO; `ENOENT` if there is no such
/// device, or if the kernel is older.
pub fn set_threaded(device: &str) -> Result<()> {
    let write = || -> rustix::io::Result<()> {
        let context = rustix::mount::fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(&context)?;
        let sys = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let setting = format!("class/net/{device}/threaded");
        let file = rustix::fs::openat(sys, setting, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, b"1").map(drop)
    };
    write().map_err(|errno| Error::new(format!("write(/sys/class/net/{device}/threaded)"), errno))
}

/// `linux/netdev.h`.
const NAPI_GET: u8 = 11;
const NAPI_DEVICE: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_PID: u16 = 4;

/// Returns all NAPI instances in the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` or `ENOENT` before Linux 6.8.
pub fn polls() -> Result<Vec<Poll>> {
    let ask = || -> std::io::Result<Vec<Poll>> {
        let mut generic = NetlinkSocket::open(NETLINK_GENERIC)?;
        let family = generic.family("netdev")?;
        let answers = generic.ask(NetlinkRequest(family, DUMP, MessageBody::of([NAPI_GET, 1, 0, 0])))?;
        Ok(answers.iter().filter_map(|answer| poll_of(answer.get(GENERIC_HEADER..)?)).collect())
    };
    ask().map_err(|error| Error::new("netlink(netdev napi-get)", error))
}

fn poll_of(attributes: &[u8]) -> Option<Poll> {
    let number = |kind| Some(u32::from_ne_bytes(attribute(attributes, kind)?.try_into().ok()?));
    Some(Poll { device: number(NAPI_DEVICE)?, id: number(NAPI_ID)?, thread: number(NAPI_PID) })
}
