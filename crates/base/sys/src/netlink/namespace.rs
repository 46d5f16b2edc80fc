//! Network and user namespaces: creating, entering and leaving them.
//!
//! All of them are anonymous: a namespace lives as long as a descriptor or a process refers to it, so even SIGKILL leaves none behind. The
//! calling thread never changes its namespace; a separate thread does the work inside one.

use crate::{Error, Result, netlink::Netlink, process::confinement::Confinement};
use rustix::{
    fs::{Mode, OFlags},
    process::{Gid, Uid, getegid, geteuid, getppid},
    thread::{
        LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_gid, set_thread_uid, unshare_unsafe,
    },
};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
};

/// A network namespace, kept alive by a descriptor.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Creates an empty namespace with its loopback device up.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`, `ENOSPC` if `user.max_net_namespaces` is reached.
    pub fn new() -> Result<Self> {
        in_scratch_thread(|| {
            // SAFETY: a network namespace does not affect memory; descriptors of other threads keep their namespace.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| Error::new("unshare(CLONE_NEWNET)", errno))?;
            let mut netlink = Netlink::open()?;
            let loopback = netlink.link("lo")?.index;
            netlink.set_up(loopback)?;
            Self::current()
        })
    }

    /// Opens the namespace that a path refers to, such as `/proc/PID/ns/net`.
    ///
    /// # Errors
    /// Any error of `open`, such as `EACCES` for another user's process.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { fd: open_namespace(path.as_ref())? })
    }

    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// Returns whether the calling thread is in the namespace of the parent process; a host of a lab is not.
    ///
    /// A process in its own user namespace cannot open its parent's namespace: it is then a host of a lab without root.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn is_inherited() -> Result<bool> {
        let parent = getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
        match Self::open(format!("/proc/{parent}/ns/net")) {
            Ok(origin) => Self::current()?.is_same(&origin),
            Err(error) if error.is_permission() => Ok(is_first_user_namespace()),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` in a new thread inside the namespace and returns its result.
    ///
    /// A socket returned by `work` stays in the namespace. A panic in `work` propagates to the caller.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` over the namespace.
    pub fn enter_with<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_scratch_thread(|| {
            enter(self.as_fd(), LinkNameSpaceType::Network)
                .map_err(|error| Error::new("setns(CLONE_NEWNET)", error))?;
            Ok(work())
        })
    }

    /// Returns a second handle to the same namespace.
    ///
    /// # Errors
    /// `EMFILE` if the process has no free descriptor.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { fd: duplicate(&self.fd)? })
    }

    /// Returns whether both handles refer to the same namespace.
    ///
    /// # Errors
    /// Any error of `fstat`.
    pub fn is_same(&self, other: &Self) -> Result<bool> {
        let key = |namespace: &Self| identify(namespace.as_fd()).map_err(|error| Error::new("fstat(namespace)", error));
        Ok(key(self)? == key(other)?)
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The namespaces of a process: a network namespace and, without root, the user namespace that owns it.
#[derive(Debug)]
pub struct Namespaces {
    /// The user namespace; absent if the process may enter the network namespace directly.
    pub user: Option<OwnedFd>,
    /// The network namespace with its links, addresses, routes and sockets.
    pub net: NetNs,
    /// What limits the processes that are started there.
    pub confinement: Confinement,
}

impl Namespaces {
    /// Returns a second handle to the same namespaces.
    ///
    /// # Errors
    /// `EMFILE` if the process has no free descriptor.
    pub fn try_clone(&self) -> Result<Self> {
        let user = self.user.as_ref().map(duplicate).transpose()?;
        Ok(Self { user, net: self.net.try_clone()?, confinement: self.confinement.clone() })
    }
}

/// Opens the user namespace of a process.
///
/// # Errors
/// Any error of `open`, such as `EACCES` for another user's process.
pub fn open_user_namespace(pid: u32) -> Result<OwnedFd> {
    open_namespace(Path::new(&format!("/proc/{pid}/ns/user")))
}

/// Returns whether this process is outside every container that maps users.
///
/// Inside one, even root may not do things that affect the whole machine, such as loading programs into the kernel.
#[must_use]
pub fn is_first_user_namespace() -> bool {
    // The initial namespace maps every id to itself: user_namespaces(7).
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]))
}

/// The maps that a child writes to become root in its own user namespace; created before the fork, because that allocates.
pub(crate) struct RootMap {
    users: String,
    groups: String,
}

impl RootMap {
    pub(crate) fn of_this_user() -> Self {
        Self { users: format!("0 {} 1", geteuid().as_raw()), groups: format!("0 {} 1", getegid().as_raw()) }
    }
}

/// Makes the calling process root in new user and network namespaces; for a child between fork and exec.
///
/// Only there is the process certain to have a single thread, which the kernel requires. Outside, it keeps the rights of its user.
pub(crate) fn become_root(map: &RootMap) -> io::Result<()> {
    // SAFETY: a child between fork and exec has no other thread that could keep different rights.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
    // The kernel accepts a group map from an unprivileged user only after setgroups is denied: user_namespaces(7).
    let files = [
        (c"/proc/self/setgroups", "deny"),
        (c"/proc/self/uid_map", map.users.as_str()),
        (c"/proc/self/gid_map", map.groups.as_str()),
    ];
    for (path, text) in files {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The kernel accepts such a file in a single write or not at all.
        rustix::io::write(file, text.as_bytes())?;
    }
    Ok(())
}

/// Moves the calling thread; for a child between fork and exec, so it only makes system calls.
pub(crate) fn join(namespaces: &Namespaces) -> io::Result<()> {
    if let Some(user) = &namespaces.user {
        enter(user.as_fd(), LinkNameSpaceType::User)?;
        // Only root keeps its rights inside across exec, and a user other than the owner is not root yet.
        set_thread_gid(Gid::ROOT)?;
        set_thread_uid(Uid::ROOT)?;
    }
    enter(namespaces.net.as_fd(), LinkNameSpaceType::Network)
}

/// Moves the calling thread unless it is already there, which needs no privilege; only makes system calls.
pub(crate) fn join_net(net: &NetNs) -> io::Result<()> {
    let here = rustix::fs::open(c"/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if identify(here.as_fd())? == identify(net.as_fd())? {
        Ok(())
    } else {
        enter(net.as_fd(), LinkNameSpaceType::Network)
    }
}

/// The identity of a namespace.
fn identify(namespace: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(namespace)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn enter(namespace: BorrowedFd<'_>, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(kind))?)
}

fn open_namespace(path: &Path) -> Result<OwnedFd> {
    let file = File::open(path).map_err(|error| Error::new(format!("open({})", path.display()), error))?;
    Ok(file.into())
}

fn duplicate(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|error| Error::new("dup(namespace)", error))
}

/// Runs `work` in a temporary thread, so that a change of namespace ends with it.
fn in_scratch_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new("clone(namespace thread)", error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        netlink::{Veth, VethEnd},
        process::{ParentBond, ProcessPlace, ProcessSpec, may_administer_network},
    };
    use std::process::{Command, Stdio};

    fn lacks_privileges() -> bool {
        fathom_testkit::lacks_privileges(may_administer_network())
    }

    #[test]
    fn a_new_namespace_holds_a_loopback_device_that_is_up_and_the_caller_stays_outside() {
        if lacks_privileges() {
            return;
        }
        let before = NetNs::current().unwrap();
        let namespace = NetNs::new().unwrap();
        assert!(NetNs::is_inherited().unwrap());
        assert!(!namespace.enter_with(NetNs::is_inherited).unwrap().unwrap());
        let links = namespace.enter_with(|| Netlink::open()?.links()).unwrap().unwrap();
        assert_eq!(links.len(), 1);
        assert!(links[0].is_up);
        assert!(NetNs::current().unwrap().is_same(&before).unwrap());
        assert!(!namespace.is_same(&before).unwrap());
    }

    #[test]
    fn a_veth_joins_two_namespaces_and_goes_with_either() {
        if lacks_privileges() {
            return;
        }
        let (near, far) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let mac = Some(fathom_model::MacAddress([2, 0, 0, 0, 0, 1]));
        let veth = Veth {
            near: VethEnd { name: "eth0", mac },
            far: VethEnd { name: "eth0", mac: None },
            far_namespace: Some(far.as_fd()),
            mtu_bytes: 9000,
            n_queues: 2,
        };
        let mut inside = near.enter_with(Netlink::open).unwrap().unwrap();
        inside.add_veth(&veth).unwrap();
        assert_eq!(inside.add_veth(&veth).unwrap_err().errno(), Some(libc::EEXIST));
        let link = inside.link("eth0").unwrap();
        assert_eq!((link.mac, link.mtu_bytes, link.n_rx_queues), (mac, 9000, Some(2)));
        assert_eq!(link.kind.as_deref(), Some("veth"));
        let device = near.enter_with(|| crate::netlink::ethtool::Device::open("eth0")).unwrap().unwrap();
        assert_eq!(device.driver().unwrap().unwrap().name, "veth");
        assert_eq!(device.link_mode().unwrap().unwrap().speed.unwrap().to_string(), "10.0 Gbit/s");
        assert_eq!(device.channels().unwrap().unwrap().max.rx, 2);
        let statistics = device.statistics().unwrap();
        assert!(statistics.iter().any(|(name, value)| name == "rx_queue_0_xdp_packets" && *value == 0));
        assert!(
            device.features().unwrap().iter().any(|feature| feature.name == "tx-tcp-segmentation" && feature.active)
        );
        inside.set_mtu(link.index, 1400).unwrap();
        inside.set_up(link.index).unwrap();
        inside.add_address(link.index, "198.18.7.1".parse().unwrap(), 24).unwrap();
        assert_eq!(inside.link("eth0").unwrap().mtu_bytes, 1400);
        assert!(inside.link("eth0").unwrap().is_up);
        let default = crate::netlink::RouteEntry {
            destination: "0.0.0.0".parse().unwrap(),
            prefix_len: 0,
            gateway: Some("198.18.7.2".parse().unwrap()),
            device: None,
        };
        inside.add_route(&default).unwrap();
        assert_eq!(inside.add_route(&default).unwrap_err().errno(), Some(libc::EEXIST));
        inside.delete_link(link.index).unwrap();
        assert_eq!(far.enter_with(|| Netlink::open()?.links()).unwrap().unwrap().len(), 1);
    }

    #[test]
    fn a_child_starts_inside_a_namespace() {
        if lacks_privileges() {
            return;
        }
        let namespaces = Namespaces { user: None, net: NetNs::new().unwrap(), confinement: Confinement::default() };
        let mut command = Command::new("cat");
        command.arg("/proc/net/dev").stdout(Stdio::piped());
        let start = ProcessSpec { command, place: ProcessPlace::In(&namespaces), bond: ParentBond::DiesWithParent };
        let output = start.spawn().unwrap().wait_with_output().unwrap();
        let devices = String::from_utf8(output.stdout).unwrap();
        assert_eq!(devices.lines().count(), 3, "two lines of headings and loopback: {devices}");
    }

    #[test]
    fn a_child_starts_where_the_thread_is_that_asks_for_it() {
        if lacks_privileges() {
            return;
        }
        let (here, inside) = (NetNs::current().unwrap(), NetNs::new().unwrap());
        let namespace_of_child = || {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut child =
                ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap();
            let namespace = NetNs::open(format!("/proc/{}/ns/net", child.id())).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            namespace
        };
        assert!(inside.enter_with(namespace_of_child).unwrap().is_same(&inside).unwrap());
        assert!(namespace_of_child().is_same(&here).unwrap());
    }

    #[test]
    fn a_child_becomes_root_of_its_own_user_namespace() {
        let mut command = Command::new("cat");
        command.args(["/proc/self/uid_map", "/proc/net/dev"]).stdout(Stdio::piped());
        let start = ProcessSpec { command, place: ProcessPlace::NewUserNamespace, bond: ParentBond::DiesWithParent };
        let child = match start.spawn() {
            Err(error) if error.is_permission() => {
                return fathom_testkit::skip("needs user namespaces");
            }
            child => child.unwrap(),
        };
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let map: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(map, ["0", &rustix::process::geteuid().as_raw().to_string(), "1"]);
        assert_eq!(text.lines().count(), 4, "the map, two headings and loopback: {text}");
    }
}
