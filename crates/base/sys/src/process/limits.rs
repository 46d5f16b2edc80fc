//! How much the kernel lets this process have (getrlimit(2)).

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

/// Lets this process have at least `count` open descriptors (`RLIMIT_NOFILE`); the limit there was is never lowered.
///
/// Up to the hard limit it needs nothing, beyond it `CAP_SYS_RESOURCE`; the sysctl `fs.nr_open` is the end.
///
/// # Errors
/// `setrlimit(RLIMIT_NOFILE)`, when the hard limit is lower and may not be raised.
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

/// Raises the limit of open descriptors to the hard one and returns it: how many one table of descriptors holds.
///
/// # Errors
/// `setrlimit(RLIMIT_NOFILE)`, which the kernel refuses to nobody who asks for no more than the hard limit.
pub fn descriptors_max() -> Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .map_err(|error| Error::new("setrlimit(RLIMIT_NOFILE)", error))?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

thread_local! {
    static HAS_OWN_DESCRIPTORS: Cell<bool> = const { Cell::new(false) };
}

/// Whether descriptors of the calling thread mean nothing on others, after [`own_descriptors`].
pub(crate) fn has_own_descriptors() -> bool {
    HAS_OWN_DESCRIPTORS.get()
}

/// Gives the calling thread a table of descriptors of its own, with nothing in it but the standard streams and what is `kept`.
///
/// The limit of open descriptors is one of each table, so threads with tables of their own have more of them together. From
/// here on a descriptor of this thread means nothing on another one, and the other way round: what is to be used on it must
/// be opened on it, and closed there as well. What is kept has the same number in both tables, and stays open in this one as
/// long as the thread lives.
///
/// # Errors
/// `close_range(CLOSE_RANGE_UNSHARE)`: Linux before 5.9, or memory has run out.
pub fn own_descriptors(kept: Option<BorrowedFd<'_>>) -> Result<()> {
    const FIRST: libc::c_uint = 3;
    let kept = kept.and_then(|kept| libc::c_uint::try_from(kept.as_raw_fd()).ok()).filter(|kept| *kept >= FIRST);
    let above = kept.map_or(FIRST, |kept| kept + 1);
    close_range((above, libc::c_uint::MAX), libc::CLOSE_RANGE_UNSHARE)?;
    HAS_OWN_DESCRIPTORS.set(true);
    let Some(kept) = kept else { return Ok(()) };
    if kept == FIRST { Ok(()) } else { close_range((FIRST, kept - 1), 0) }
}

/// Closes what is open from the first to the last number, once the table is the calling thread's own.
fn close_range((first, last): (libc::c_uint, libc::c_uint), flags: libc::c_uint) -> Result<()> {
    // SAFETY: it takes three numbers. Descriptors that other threads own stay open in the table that those go on to share,
    // and the copies that this thread loses were never known to it.
    let outcome = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if outcome == 0 { Ok(()) } else { Err(Error::last("close_range(CLOSE_RANGE_UNSHARE)")) }
}

/// The ports that the kernel chooses from when a socket connects without one (`net.ipv4.ip_local_port_range`).
///
/// # Errors
/// `/proc` is not there, or the kernel writes something new.
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
        // Without what others have open, the lowest number is free.
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
