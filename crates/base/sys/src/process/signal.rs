//! Signals that ask this process to end: SIGINT, SIGTERM and SIGHUP as a flag, or left to a child.
//!
//! As a flag, the first signal is recorded, so that a run can end properly and print its results. A signal one second or more later triggers the
//! default action and kills the process, wherever it is stuck. An earlier second signal does not, because timeout(1) signals its child and
//! then its whole group, so that one request arrives twice.

use crate::{Error, Result, clock, process::Pidfd};
use fathom_model::units::Nanos;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    time::Timespec,
};
use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd as _, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

/// The first signal that arrived, 0 for none. A handler can only reach statics.
static RECEIVED: AtomicI32 = AtomicI32::new(0);
/// The time of the first signal, on the monotonic clock.
static RECEIVED_AT: AtomicU64 = AtomicU64::new(0);
/// A signal this long after the first is a second request.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// The descriptor that the handler makes readable, -1 without a watch.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The pidfd of the child that signals are passed on to, -1 without one.
static CHILD: AtomicI32 = AtomicI32::new(-1);
/// The last signal for the child, 0 for none.
static KEPT: AtomicI32 = AtomicI32::new(0);

/// A request of the user or the system to end the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: ctrl-C.
    Interrupt,
    /// SIGTERM: a request from another program.
    Terminate,
    /// SIGHUP: the terminal is gone.
    Hangup,
}

impl Signal {
    const ALL: [Self; 3] = [Self::Interrupt, Self::Terminate, Self::Hangup];

    pub(crate) const fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::Hangup => libc::SIGHUP,
        }
    }

    /// The exit code that the shell expects of a program ended by it: 128 plus the number.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
            Self::Hangup => 129,
        }
    }
}

/// Records the signals of this process; dropping it restores the old actions.
#[derive(Debug)]
pub struct SignalWatch {
    wake: OwnedFd,
    former: Vec<(Signal, libc::sigaction)>,
}

/// Starts to record the signals that ask the program to end.
///
/// A signal that is already ignored stays ignored, as `nohup` requires.
///
/// # Errors
/// `EBUSY` if a watch already exists: the action of a signal belongs to the whole process.
pub fn watch() -> Result<SignalWatch> {
    watch_where(|former| former.sa_sigaction != libc::SIG_IGN)
}

/// Like `watch`, but also records signals that were ignored when the program was started.
///
/// # Errors
/// As [`watch`].
pub fn watch_also_ignored() -> Result<SignalWatch> {
    watch_where(|_| true)
}

fn watch_where(is_wanted: fn(&libc::sigaction) -> bool) -> Result<SignalWatch> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::new("eventfd(signals)", errno))?;
    WAKE.compare_exchange(-1, wake.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst)
        .map_err(|_| Error::new("sigaction(watched already)", Errno::BUSY))?;
    RECEIVED.store(0, Ordering::SeqCst);
    let mut watch = SignalWatch { wake, former: Vec::new() };
    for signal in Signal::ALL {
        let former = action(signal.number(), None)?;
        if is_wanted(&former) {
            action(signal.number(), Some(&handled_by(note as *const () as libc::sighandler_t, 0)))?;
            watch.former.push((signal, former));
        }
    }
    Ok(watch)
}

impl SignalWatch {
    /// Returns the first signal since the watch began.
    #[must_use]
    pub fn received(&self) -> Option<Signal> {
        received()
    }

    /// Sleeps until a signal arrives or the monotonic clock reaches `deadline`.
    ///
    /// # Errors
    /// Any error of `poll`.
    pub fn wait_until(&self, deadline: Nanos) -> Result<Option<Signal>> {
        while self.received().is_none() {
            let left = deadline.since(clock::now());
            if left == Nanos::ZERO || poll_readable(&[self.as_fd()], left)? {
                break;
            }
        }
        Ok(self.received())
    }
}

/// The signals that ask for an end, of a program that only waits for a child: the child decides what they mean.
///
/// Those of a terminal (ctrl-C) reach the child too; those that another program sent to this process alone are passed on. This lasts as
/// long as the process.
#[derive(Debug)]
#[must_use]
pub struct SignalsForChild(());

impl SignalsForChild {
    /// Begins to keep them, before the child is started. A signal that is already ignored stays so.
    ///
    /// # Errors
    /// Any error of `sigaction`.
    pub fn keep() -> Result<Self> {
        for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            if action(number, None)?.sa_sigaction != libc::SIG_IGN {
                let pass_on = handled_by(pass_on as *const () as libc::sighandler_t, libc::SA_SIGINFO);
                action(number, Some(&pass_on))?;
            }
        }
        Ok(Self(()))
    }

    /// Passes them on to this child from now on, and the last one that has arrived.
    pub fn pass_to(self, child: Pidfd) {
        CHILD.store(OwnedFd::from(child).into_raw_fd(), Ordering::SeqCst);
        match KEPT.load(Ordering::SeqCst) {
            0 => {}
            number => send_to_child(number),
        }
    }
}

/// Returns the first signal of this process's watch; none if there is no watch, or none has arrived.
///
/// For work far below whoever began the watch.
#[must_use]
pub fn received() -> Option<Signal> {
    let number = RECEIVED.load(Ordering::SeqCst);
    Signal::ALL.into_iter().find(|signal| signal.number() == number)
}

/// Readable once a signal has arrived, for an event loop.
impl AsFd for SignalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        for (signal, former) in &self.former {
            // The old action came from the kernel, so the kernel accepts it.
            let _ = action(signal.number(), Some(former));
        }
        WAKE.store(-1, Ordering::SeqCst);
    }
}

/// Returns whether one of the descriptors became readable (or hung up) within the time; a signal ends the wait early.
///
/// # Errors
/// Any error of `poll`.
#[expect(clippy::missing_panics_doc, reason = "a remainder below 1e9 always fits")]
pub fn poll_readable(descriptors: &[BorrowedFd<'_>], patience: Nanos) -> Result<bool> {
    let mut polled: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: i64::try_from(patience.0 / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(patience.0 % 1_000_000_000).expect("a remainder below 1e9 fits"),
    };
    match poll(&mut polled, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::new("poll", errno)),
    }
}

/// Uses only what signal-safety(7) allows: atomics, `clock_gettime`, `signal`, `raise` and `write`.
extern "C" fn note(number: libc::c_int) {
    let now = clock::now();
    if RECEIVED.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        RECEIVED_AT.store(now.0, Ordering::SeqCst);
    } else if now - Nanos(RECEIVED_AT.load(Ordering::SeqCst)) >= PATIENCE {
        // SAFETY: SIG_DFL is a valid action for the signal that is being handled.
        unsafe { libc::signal(number, libc::SIG_DFL) };
        // SAFETY: raises a valid signal; it is delivered when this handler returns.
        unsafe { libc::raise(number) };
    }
    let wake = WAKE.load(Ordering::SeqCst);
    let one = 1_u64;
    // SAFETY: errno is a thread-local of libc; its address is valid for the lifetime of the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid; the interrupted code must get its errno back.
    let saved = unsafe { *errno };
    // SAFETY: writes 8 bytes from a live u64; an invalid descriptor (-1) is rejected with EBADF.
    unsafe { libc::write(wake, ptr::from_ref(&one).cast(), size_of::<u64>()) };
    // SAFETY: as for the read above.
    unsafe { *errno = saved };
}

/// Uses only what signal-safety(7) allows: atomics and a system call.
extern "C" fn pass_on(number: libc::c_int, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let origin = unsafe { (*info).si_code };
    // Above 0, the kernel sent it, for the terminal.
    if origin <= 0 {
        KEPT.store(number, Ordering::SeqCst);
        send_to_child(number);
    }
}

/// Sends a signal to the child, if it is known and still there.
fn send_to_child(number: libc::c_int) {
    let child = CHILD.load(Ordering::SeqCst);
    // SAFETY: errno is a thread-local of libc; its address is valid for the lifetime of the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid; code that a handler interrupted must get its errno back.
    let saved = unsafe { *errno };
    // SAFETY: pidfd_send_signal(2) without siginfo and flags, and with a descriptor that stays open or -1, which is refused.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, child, number, ptr::null::<libc::siginfo_t>(), 0) };
    // SAFETY: as for the read above.
    unsafe { *errno = saved };
}

/// The action that calls this handler.
fn handled_by(handler: libc::sighandler_t, flags: libc::c_int) -> libc::sigaction {
    // SAFETY: sigaction is plain old data, for which zeros are valid (no flags, an empty mask).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    action
}

/// Reads the action of a signal, and replaces it if `new` is given: sigaction(2).
fn action(number: libc::c_int, new: Option<&libc::sigaction>) -> Result<libc::sigaction> {
    let mut former = MaybeUninit::<libc::sigaction>::zeroed();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or points to a valid action, `former` has room for one.
    if unsafe { libc::sigaction(number, new, former.as_mut_ptr()) } < 0 {
        return Err(Error::last(format!("sigaction({number})")));
    }
    // SAFETY: the call succeeded, so the kernel has filled it in (and it was zeroed before).
    Ok(unsafe { former.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A single test, because signal actions belong to the whole process.
    #[test]
    fn a_wish_that_arrives_twice_is_noted_once_and_kills_nobody() {
        // A test started in the background inherits that some signals are ignored.
        // SAFETY: sigaction is plain old data, and zeros are the default action.
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        for signal in Signal::ALL {
            action(signal.number(), Some(&default)).unwrap();
        }
        let watch = watch().unwrap();
        assert!(super::watch().is_err(), "a second watch is refused");
        assert_eq!(watch.received(), None);
        assert_eq!(watch.wait_until(Nanos::ZERO).unwrap(), None, "a deadline in the past does not block");

        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        let noted = watch.wait_until(clock::now() + Nanos::from_secs(10)).unwrap();
        assert_eq!(noted, Some(Signal::Hangup));
        assert_eq!(noted.unwrap().exit_code(), 129);
        for again in [libc::SIGHUP, libc::SIGTERM] {
            // SAFETY: raises a valid signal in this thread; its handler has run when the call returns.
            assert_eq!(unsafe { libc::raise(again) }, 0);
        }
        assert_eq!(watch.received(), Some(Signal::Hangup), "the first one stays");
        assert_ne!(action(libc::SIGINT, None).unwrap().sa_sigaction, libc::SIG_DFL);

        drop(watch);
        assert_eq!(action(libc::SIGINT, None).unwrap().sa_sigaction, libc::SIG_DFL);
    }
}
