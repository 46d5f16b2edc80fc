//! The use of all CPUs of a host during a test, as netperf calculates it from `/proc/stat` (`netcpu_procstat.c`).

use std::fs;

use fathom_model::units::approximate;

use super::{Error, wire::CpuPercents};

/// The states of a CPU that add up to its time; those of guests are already part of the first two.
const STATES: usize = 8;
/// Their order in a line of `/proc/stat`, see proc(5).
const USER: usize = 0;
const SYSTEM: usize = 2;
const IDLE: usize = 3;
const IOWAIT: usize = 4;
const IRQ: usize = 5;
const SOFTIRQ: usize = 6;

/// The ticks of each CPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTicks(Vec<[u64; STATES]>);

impl CpuTicks {
    /// Reads the ticks of this host.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn now() -> Result<Self, Error> {
        let text = fs::read_to_string("/proc/stat");
        let text = text.map_err(|cause| Error::System { call: "read(/proc/stat)".to_owned(), cause })?;
        Ok(Self::parse(&text))
    }

    /// Reads the lines `cpuN` of a text; other lines are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let cpus = text.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?.strip_prefix("cpu")?;
            name.parse::<u32>().ok()?;
            let mut ticks = [0; STATES];
            ticks.iter_mut().zip(words).for_each(|(tick, word)| *tick = word.parse().unwrap_or(0));
            Some(ticks)
        });
        Self(cpus.collect())
    }

    /// The number of CPUs.
    #[must_use]
    pub fn n_cpus(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns how the time since an earlier moment was used, multiplied by `correction`.
    ///
    /// The correction is the measured span over the length of the test: a server that waits for more data after the end of a test
    /// was idle in that time. A CPU without a tick in between counts as idle.
    #[must_use]
    pub fn since(&self, earlier: &Self, correction: f64) -> CpuPercents {
        let mut sums = [0.0; STATES];
        let (mut busy, mut peak) = (0.0, (0.0, -1));
        for (idx, (now, before)) in self.0.iter().zip(&earlier.0).enumerate() {
            let spent: Vec<u64> = now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect();
            let total: u64 = spent.iter().sum();
            if total == 0 {
                continue;
            }
            let percent = |ticks: u64| 100.0 * approximate(ticks) / approximate(total);
            sums.iter_mut().zip(&spent).for_each(|(sum, ticks)| *sum += percent(*ticks));
            let used = 100.0 - percent(spent[IDLE]);
            busy += used;
            if used * correction > peak.0 {
                peak = (used * correction, i32::try_from(idx).unwrap_or(-1));
            }
        }
        let n = approximate(u64::from(self.n_cpus().max(1)));
        // Another program may have kept the host busy in the time that is taken off.
        let mean = |sum: f64| narrow((sum * correction / n).min(100.0));
        CpuPercents {
            busy: mean(busy),
            user: mean(sums[USER]),
            system: mean(sums[SYSTEM]),
            iowait: mean(sums[IOWAIT]),
            irq: mean(sums[IRQ]),
            softirq: mean(sums[SOFTIRQ]),
            peak: narrow(peak.0.min(100.0)),
            peak_idx: peak.1,
            n_cpus: self.n_cpus(),
        }
    }
}

/// A percentage as the message carries it.
#[expect(clippy::cast_possible_truncation, reason = "seven digits of a percentage are more than the ticks have")]
fn narrow(percent: f64) -> f32 {
    percent as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "cpu  300 0 300 2400 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0\ncpu1 200 0 200 1600 0 0 0 0 7 0\nintr 1\n";
    const AFTER: &str =
        "cpu  375 0 325 2500 0 0 0 0 0 0\ncpu0 150 0 120 820 0 0 10 0 0 0\ncpu1 225 0 205 1670 0 0 0 0 9 0\n";

    #[test]
    fn the_use_is_the_mean_of_all_cpus_and_the_peak_that_of_the_busiest() {
        let (before, after) = (CpuTicks::parse(BEFORE), CpuTicks::parse(AFTER));
        let cpu = after.since(&before, 1.0);
        let got = [cpu.busy, cpu.user, cpu.system, cpu.softirq, cpu.peak].map(|share| format!("{share:.1}"));
        assert_eq!(got, ["55.0", "37.5", "12.5", "5.0", "80.0"]);
        assert_eq!((cpu.peak_idx, cpu.n_cpus), (0, 2));
    }

    #[test]
    fn time_in_which_nothing_was_to_be_done_does_not_dilute_the_use() {
        let (before, after) = (CpuTicks::parse(BEFORE), CpuTicks::parse(AFTER));
        let (whole, corrected) = (after.since(&before, 1.0), after.since(&before, 1.5));
        assert!((corrected.busy - whole.busy * 1.5).abs() < 0.01);
        assert!((after.since(&before, 5.0).busy - 100.0).abs() < 0.01, "no host is busier than that");
    }

    #[test]
    fn without_a_tick_nothing_was_used() {
        let before = CpuTicks::parse(BEFORE);
        assert_eq!(before.since(&before, 1.0), CpuPercents { peak_idx: -1, n_cpus: 2, ..CpuPercents::default() });
    }
}
