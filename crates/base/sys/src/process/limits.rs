//! Resource limits of this process (getrlimit(2)).

use std::{
    cell::Cell,
    fs, io,
    ops::RangeInclusive,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{Error, Result};

/// Raises the limit of open descriptors (`RLIMIT_NOFILE`) to at least `count`; never lowers it.
///
/// Up to the hard limit this needs no privilege, beyond it `CAP_SYS_RESOURCE`; the sysctl `fs.nr_open` is the absolute maximum.
///
/// # Errors
/// `setrlimit(RLIMIT_NOFILE)`, if the hard limit is lower and may not be raised.
pub fn allow_descriptors(count: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let suffices = |bound: Option<u64>| bound.is_none_or(|bound| bound >= count);
    if suffices(limit.current) {
        return Ok(());
    }
    let maximum = if suffices(limit.maximum) { limit.maximum } else { Some(count) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).map_err(|error: Errno| {
        let hard = limit.maximum.unwrap_or(u64::MAX);
        Error::new(format!("setrlimit(RLIMIT_NOFILE, {count}), where the hard limit is {hard}"), error)
    })
}

/// Raises the limit of open descriptors to the hard limit and returns it: the capacity of one descriptor table.
///
/// # Errors
/// `setrlimit(RLIMIT_NOFILE)`, which does not fail for values up to the hard limit.
pub fn descriptors_max() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .map_err(|error| Error::new("setrlimit(RLIMIT_NOFILE)", error))?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

thread_local! {
    static HAS_OWN_DESCRIPTORS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread has its own descriptor table after [`own_descriptors`], so that its descriptors are invalid
/// elsewhere.
pub(crate) fn has_own_descriptors() -> bool {
    HAS_OWN_DESCRIPTORS.get()
}

/// Gives the calling thread its own descriptor table that contains only the standard streams and `kept`.
///
/// The limit of open descriptors applies per table, so threads with their own tables have more in total. From here on, a descriptor of this
/// thread is invalid on other threads and vice versa: a descriptor used on this thread must be opened and closed on it. `kept` has the same
/// number in both tables and stays open in this one as long as the thread lives.
///
/// # Errors
/// `close_range(CLOSE_RANGE_UNSHARE)`: Linux before 5.9, or out of memory.
pub fn own_descriptors(kept: Option<BorrowedFd<'_>>) -> Result<()> {
    const FIRST: libc::c_uint = 3;
    let kept = kept.and_then(|kept| libc::c_uint::try_from(kept.as_raw_fd()).ok()).filter(|kept| *kept >= FIRST);
    let above = kept.map_or(FIRST, |kept| kept + 1);
    close_range((above, libc::c_uint::MAX), libc::CLOSE_RANGE_UNSHARE)?;
    HAS_OWN_DESCRIPTORS.set(true);
    let Some(kept) = kept else { return Ok(()) };
    if kept == FIRST { Ok(()) } else { close_range((FIRST, kept - 1), 0) }
}

/// Closes all descriptors in a range of numbers, after the table is the calling thread's own.
fn close_range((first, last): (libc::c_uint, libc::c_uint), flags: libc::c_uint) -> Result<()> {
    // SAFETY: the call takes three numbers. Descriptors of other threads stay open in the table that those threads still share, and this
    // thread never used the copies that it closes.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if outcome == 0 { Ok(()) } else { Err(Error::last("close_range(CLOSE_RANGE_UNSHARE)")) }
}

/// The range from which the kernel chooses a port if a socket connects without one (`net.ipv4.ip_local_port_range`).
///
/// # Errors
/// If `/proc` is missing, or if the kernel's format has changed.
pub fn local_ports() -> Result<RangeInclusive<u16>> {
    const PATH: &str = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = fs::read_to_string(PATH).map_err(|error| Error::new(format!("read({PATH})"), error))?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) => Ok(first..=last),
        _ => Err(Error::new(format!("read({PATH})"), io::Error::from(io::ErrorKind::InvalidData))),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, thread};

    use super::*;

    #[test]
    fn a_thread_with_a_table_of_its_own_does_not_take_descriptors_from_the_others() {
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let inside = thread::spawn(|| {
            own_descriptors(None).unwrap();
            let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
            (inside.as_raw_fd(), inside.local_addr().is_ok())
        });
        // Without other threads' descriptors, the lowest number is free.
        assert_eq!(inside.join().unwrap(), (3, true));
        assert!(outside.local_addr().is_ok(), "what the others have stays open");
    }

    #[test]
    fn the_kernel_says_which_ports_it_chooses_from() {
        let ports = local_ports().unwrap();
        assert!(*ports.start() > 0 && ports.len() > 1000, "{ports:?}");
    }

    #[test]
    fn one_table_holds_as_much_as_the_hard_limit_says() {
        let most = descriptors_max().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), most);
    }

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let more = before.current.unwrap_or(1024).min(before.maximum.unwrap_or(u64::MAX).saturating_sub(1)) + 1;
        allow_descriptors(more).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, before.current.map(|current| current.max(more)));
        allow_descriptors(1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, before.current.map(|current| current.max(more)));
    }

    #[test]
    fn more_than_the_kernel_can_have_is_refused_with_the_limit() {
        let error = allow_descriptors(1 << 40).unwrap_err();
        assert!(error.call.starts_with("setrlimit(RLIMIT_NOFILE, 1099511627776), where"), "{error}");
        assert!(error.is_permission(), "{error}");
    }
}
