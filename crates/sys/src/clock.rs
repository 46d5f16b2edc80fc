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
