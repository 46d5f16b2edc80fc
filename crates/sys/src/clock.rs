//! The clocks of the kernel.
//!
//! Only the edges of the program read a clock; everything else is given the time as an argument.

use fathom_model::units::Nanos;
use rustix::{
    io::Errno,
    thread::{NanosleepRelativeResult, nanosleep},
    time::{ClockId, Timespec, clock_gettime},
};

fn nanos(time: Timespec) -> Nanos {
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Nanos::from_secs(secs) + Nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// The monotonic clock (`CLOCK_MONOTONIC`): all durations and deadlines come from it.
#[must_use]
pub fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// The time since the epoch (`CLOCK_REALTIME`): for stamps that people read, never for durations.
#[must_use]
pub fn wall() -> Nanos {
    nanos(clock_gettime(ClockId::Realtime))
}

/// The processor time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

/// The processor time that all threads of this process have used (`CLOCK_PROCESS_CPUTIME_ID`).
#[must_use]
pub fn process_cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// Processor time by where it was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// In the program.
    pub user: Nanos,
    /// In the kernel on its behalf, without interrupts.
    pub system: Nanos,
}

impl std::ops::Add for CpuTimes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

impl std::ops::Sub for CpuTimes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { user: self.user - other.user, system: self.system - other.system }
    }
}

impl std::iter::Sum for CpuTimes {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), std::ops::Add::add)
    }
}

/// The processor time that the calling thread has used, by where (`getrusage(RUSAGE_THREAD)`), in microseconds.
#[must_use]
pub fn thread_cpu_times() -> CpuTimes {
    // SAFETY: the structure is made of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable and of the size that the kernel writes; with this `who` the call does not fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let nanos = |time: libc::timeval| {
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        Nanos::from_secs(part(time.tv_sec)) + Nanos::from_micros(part(time.tv_usec))
    };
    CpuTimes { user: nanos(usage.ru_utime), system: nanos(usage.ru_stime) }
}

/// Lets sleeps of the calling thread end as soon as the processor allows (`PR_SET_TIMERSLACK`, prctl(2)).
///
/// The kernel may otherwise let them end 50 µs late, to wake several threads at once.
pub fn sleep_finely() {
    // The only refusal is for real-time threads, which have no slack to begin with.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Sleeps until the monotonic clock shows `deadline`, or until a signal; the time at which it woke.
#[expect(clippy::must_use_candidate, reason = "most callers want the sleep, not the time")]
pub fn sleep_until(deadline: Nanos) -> Nanos {
    let left = deadline.since(now());
    if left > Nanos::ZERO {
        let left = Timespec {
            tv_sec: i64::try_from(left.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left.0 % 1_000_000_000).unwrap_or(0),
        };
        match nanosleep(&left) {
            NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_) => {}
            NanosleepRelativeResult::Err(error) => debug_assert_eq!(error, Errno::INTR),
        }
    }
    now()
}
