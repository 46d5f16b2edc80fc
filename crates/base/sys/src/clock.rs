//! The clocks of the kernel.
//!
//! Only the outermost parts of the program read a clock; everything else receives the time as an argument.

use std::{fs::File, mem::MaybeUninit, os::unix::fs::FileExt};

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

/// The monotonic clock (`CLOCK_MONOTONIC`), the source of all durations and deadlines.
#[must_use]
pub fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// The time since the epoch (`CLOCK_REALTIME`): for timestamps shown to people, never for durations.
#[must_use]
pub fn wall() -> Nanos {
    nanos(clock_gettime(ClockId::Realtime))
}

/// What the kernel knows about the error of [`wall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSync {
    /// Whether a daemon (NTP, PTP) keeps the clock to a reference. The kernel forgets it when it hears nothing for hours.
    pub is_synchronized: bool,
    /// The largest possible distance from the reference.
    pub error_max: Nanos,
}

/// Asks the kernel how well the wall clock is kept (`adjtimex(2)`, which changes nothing here); `None` where it is not allowed to.
#[must_use]
pub fn time_sync() -> Option<TimeSync> {
    // SAFETY: timex is plain old data, for which zeros are valid: no mode, nothing to set.
    let mut state: libc::timex = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: `state` is a valid `timex`, and with `modes` zero the kernel only fills it in.
    let outcome = unsafe { libc::adjtimex(&raw mut state) };
    (outcome >= 0).then(|| TimeSync {
        is_synchronized: state.status & libc::STA_UNSYNC == 0,
        error_max: Nanos::from_micros(u64::try_from(state.maxerror).unwrap_or(0)),
    })
}

/// The CPU time used by the calling thread (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

/// The CPU clock of a thread of this process, readable from other threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread, for other threads to read.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let thread = this_thread();
        // `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of linux/posix-timers.h, as in pthread_getcpuclockid(3).
        Self(((!thread) << 3) | 6)
    }

    /// Converts to a number for an atomic; never 0.
    #[must_use]
    pub const fn to_raw(self) -> i32 {
        self.0
    }

    /// Converts from the result of [`ThreadClock::to_raw`].
    #[must_use]
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// Returns the CPU time used so far; `None` if the thread has ended.
    #[must_use]
    pub fn read(self) -> Option<Nanos> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is writable and of the size that the kernel writes; an unknown clock is an error.
        let result = unsafe { libc::clock_gettime(self.0, &raw mut time) };
        let (secs, rest) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_nsec).ok()?);
        (result == 0).then(|| Nanos::from_secs(secs) + Nanos(rest))
    }
}

/// Returns the number of the calling thread.
#[must_use]
pub fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the time that a thread of this process has had work and no core to run on; `None` if the kernel does not tell or the thread
/// has ended (`/proc/self/task/TID/schedstat`, Documentation/scheduler/sched-stats.rst).
#[must_use]
pub fn run_delay(thread: i32) -> Option<Nanos> {
    second_number(&std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?)
}

/// How long a thread has run and has waited for a core since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreTimes {
    /// The time on a core.
    pub ran: Nanos,
    /// The time with work and no core to run on.
    pub waited: Nanos,
}

/// Returns the times of a thread of this machine; `None` if it has ended or the kernel does not tell (`/proc/TID/schedstat`,
/// Documentation/scheduler/sched-stats.rst).
#[must_use]
pub fn core_times(thread: u32) -> Option<CoreTimes> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?;
    let ran = text.split_whitespace().next()?.parse().ok().map(Nanos)?;
    Some(CoreTimes { ran, waited: second_number(&text)? })
}

/// The run delay of one thread, from a file that stays open: cheap enough to read around a single wait.
#[derive(Debug)]
pub struct RunDelayFile(File);

impl RunDelayFile {
    /// Opens the file of the calling thread; `None` if the kernel does not count run delay.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        let own = Self(File::open("/proc/thread-self/schedstat").ok()?);
        own.read().map(|_| own)
    }

    /// Returns the time that the thread has had work and no core to run on, as [`run_delay`] does.
    #[must_use]
    pub fn read(&self) -> Option<Nanos> {
        // Three numbers of at most 20 digits.
        let mut text = [0; 64];
        let n = self.0.read_at(&mut text, 0).ok()?;
        second_number(str::from_utf8(&text[..n]).ok()?)
    }
}

/// The run delay in the text of a `schedstat` file: time on the core, run delay, number of time slices.
fn second_number(text: &str) -> Option<Nanos> {
    text.split_whitespace().nth(1)?.parse().ok().map(Nanos)
}

/// The CPU time used by all threads of this process (`CLOCK_PROCESS_CPUTIME_ID`).
#[must_use]
pub fn process_cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time in user mode and in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// In user mode.
    pub user: Nanos,
    /// In the kernel on behalf of the program, without interrupts.
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

/// The CPU time used by the calling thread, by mode (`getrusage(RUSAGE_THREAD)`), in microseconds.
#[must_use]
pub fn thread_cpu_times() -> CpuTimes {
    // SAFETY: the structure consists of numbers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable and has the size that the kernel writes; the call does not fail with this `who`.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    let nanos = |time: libc::timeval| {
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        Nanos::from_secs(part(time.tv_sec)) + Nanos::from_micros(part(time.tv_usec))
    };
    CpuTimes { user: nanos(usage.ru_utime), system: nanos(usage.ru_stime) }
}

/// Minimizes the timer slack of the calling thread, so that its sleeps end on time (`PR_SET_TIMERSLACK`, prctl(2)).
///
/// By default the kernel may end them 50 µs late, to wake several threads at once.
pub fn sleep_finely() {
    // The call fails only for real-time threads, which have no slack anyway.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Sleeps until the monotonic clock reaches `deadline`, or until a signal; returns the wake-up time.
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

/// Waits until the monotonic clock reaches `deadline`, to within a microsecond or so: it sleeps, and is awake for the last 80 µs.
///
/// A thread runs 10 to 70 µs after the timer that wakes it up.
pub fn wait_exactly_until(deadline: Nanos) {
    const AWAKE: Nanos = Nanos::from_micros(80);
    // A signal ends a sleep early.
    while deadline.since(now()) > AWAKE {
        sleep_until(deadline - AWAKE);
    }
    while now() < deadline {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn the_kernel_tells_how_well_the_wall_clock_is_kept() {
        let before = time_sync().expect("reading needs no privilege");
        // The kernel lets the largest error grow by 0.5 ms in a second, up to 16 s, where nobody sets it back.
        assert!(before.error_max <= Nanos::from_secs(16), "{before:?}");
        assert!(before.is_synchronized || before.error_max > Nanos::ZERO, "{before:?}");
    }

    #[test]
    fn the_time_of_a_thread_is_read_from_outside() {
        let (result, clocks) = mpsc::channel();
        let (go_on, waits) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            while thread_cpu() < Nanos::from_millis(2) {}
            result.send(ThreadClock::of_this_thread()).unwrap();
            waits.recv().unwrap();
        });
        let clock = clocks.recv().unwrap();
        assert!(ThreadClock::from_raw(clock.to_raw()).read().unwrap() >= Nanos::from_millis(2));
        go_on.send(()).unwrap();
        thread.join().unwrap();
    }
}
