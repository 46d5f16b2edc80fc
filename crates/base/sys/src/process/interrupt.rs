//! Ending a long system call of one thread from another.
//!
//! Some calls end early for nothing but a signal. One is sent here that does nothing else, to one thread and no other.

use std::{mem::MaybeUninit, ptr, sync::OnceLock};

use crate::{Error, Result};

/// A signal that nobody else uses and whose default is to do nothing: SIGURG is only sent for sockets with an owner (`F_SETOWN`).
const SIGNAL: libc::c_int = libc::SIGURG;

/// A thread whose system calls can be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruptible {
    thread: libc::pid_t,
}

impl Interruptible {
    /// The calling thread, which must outlive the last [`Self::interrupt`].
    ///
    /// # Errors
    /// Whatever `sigaction` answers; Linux refuses only signals that do not exist.
    pub fn current() -> Result<Self> {
        catch()?;
        // SAFETY: the call takes nothing and always succeeds.
        Ok(Self { thread: unsafe { libc::gettid() } })
    }

    /// Sends the signal; a thread that is not in a system call at this moment does not notice.
    pub fn interrupt(&self) {
        let process = std::process::id();
        // SAFETY: the call takes no pointers, and names a thread of this process and no other.
        unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread, SIGNAL) };
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// A signal that is ignored ends no call, so there must be a handler; it stays, because it does nothing.
fn catch() -> Result<()> {
    static CAUGHT: OnceLock<i32> = OnceLock::new();
    let errno = *CAUGHT.get_or_init(|| {
        // SAFETY: sigaction is plain old data, for which zeros are valid: no flags (none restarts a call), an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = ignore as *const () as libc::sighandler_t;
        // SAFETY: the action is valid, and the former one is not asked for.
        let outcome = unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) };
        if outcome < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL) } else { 0 }
    });
    if errno == 0 { Ok(()) } else { Err(Error::new("sigaction(SIGURG)", std::io::Error::from_raw_os_error(errno))) }
}
