//! Interrupts a long system call of one thread from another thread.
//!
//! Some calls end early only on a signal. This module sends one that has no other effect, and only to one thread.

use std::{mem::MaybeUninit, ptr, sync::OnceLock};

use crate::{Error, Result};

/// A signal with no other use here and with no default effect: SIGURG is only sent for sockets with an owner (`F_SETOWN`).
const SIGNAL: libc::c_int = libc::SIGURG;

/// A thread whose system calls can be interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruptible {
    thread: libc::pid_t,
}

impl Interruptible {
    /// Returns the calling thread, which must outlive the last [`Self::interrupt`].
    ///
    /// # Errors
    /// Any error of `sigaction`; Linux rejects only invalid signals.
    pub fn current() -> Result<Self> {
        catch()?;
        // SAFETY: the call takes nothing and always succeeds.
        Ok(Self { thread: unsafe { libc::gettid() } })
    }

    /// Sends the signal. It has no effect on a thread outside a system call.
    pub fn interrupt(&self) {
        let process = std::process::id();
        // SAFETY: the call takes no pointers and targets only a thread of this process.
        unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, SIGNAL) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// An ignored signal interrupts no call, so there must be a handler; it stays installed, because it does nothing.
fn catch() -> Result<()> {
    static CAUGHT: OnceLock<i32> = OnceLock::new();
    let errno = *CAUGHT.get_or_init(|| {
        // SAFETY: sigaction is plain old data, for which zeros are valid: no flags (no SA_RESTART), an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = ignore as *const () as libc::sighandler_t;
        // SAFETY: the action is valid, and the old one is not requested.
        let outcome = unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) };
        if outcome < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) } else { 0 }
    });
    if errno == 0 { Ok(()) } else { Err(Error::new("sigaction(SIGURG)", std::io::Error::from_raw_os_error(errno))) }
}
