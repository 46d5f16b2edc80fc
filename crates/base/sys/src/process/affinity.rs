//! CPU affinity of threads.

use crate::{Error, Result};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Pins the calling thread to one core, given by the kernel's number.
///
/// # Errors
/// `EINVAL` if the core does not exist or the process may not use it (cpuset).
pub fn pin_thread(core: usize) -> Result<()> {
    pin(None, core, || format!("sched_setaffinity(core {core})"))
}

/// Pins another thread to one core, such as a kernel thread, until it ends.
///
/// Needs `CAP_SYS_NICE` for threads of other users.
///
/// # Errors
/// `ESRCH` if there is no such thread, `EINVAL` if the core does not exist.
pub fn pin_other(thread: u32, core: usize) -> Result<()> {
    let call = || format!("sched_setaffinity(thread {thread}, core {core})");
    let pid = i32::try_from(thread).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::new(call(), rustix::io::Errno::SRCH))?;
    pin(Some(pid), core, call)
}

fn pin(thread: Option<Pid>, core: usize, call: impl Fn() -> String) -> Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(Error::new(call(), rustix::io::Errno::INVAL));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(thread, &cores).map_err(|errno| Error::new(call(), errno))
}

/// Restricts the calling thread to these cores.
///
/// # Errors
/// `EINVAL` if none of them exists or is allowed.
pub fn allow_cores(cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(|errno| Error::new("sched_setaffinity", errno))
}

/// Returns the cores on which the calling thread may run, in ascending order.
///
/// # Errors
/// Any error of `sched_getaffinity`; on Linux it does not fail for the calling thread.
pub fn allowed_cores() -> Result<Vec<usize>> {
    let cores = sched_getaffinity(None).map_err(|errno| Error::new("sched_getaffinity", errno))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core)).collect())
}

/// Returns true if a CPU quota of a control group (`cpu.max`, `cpu.cfs_quota_us`) gives this process less than the cores on which the calling
/// thread may run. A quota below one core is not seen where it may run on one core alone.
#[must_use]
pub fn has_quota() -> bool {
    let n_given = std::thread::available_parallelism().map(usize::from);
    n_given.is_ok_and(|n_given| allowed_cores().is_ok_and(|cores| n_given < cores.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_one_core_only() {
        let last = *allowed_cores().unwrap().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin_thread(last).unwrap();
            allowed_cores().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [last]);
    }

    #[test]
    fn another_thread_is_pinned_by_its_number() {
        let last = *allowed_cores().unwrap().last().unwrap();
        pin_other(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), last).unwrap();
        assert_eq!(allowed_cores().unwrap(), [last]);
        assert_eq!(pin_other(0, last).unwrap_err().errno(), Some(libc::ESRCH));
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        assert!(pin_thread(CpuSet::MAX_CPU - 1).is_err());
        assert_eq!(pin_thread(usize::MAX).unwrap_err().call, format!("sched_setaffinity(core {})", usize::MAX));
    }
}
