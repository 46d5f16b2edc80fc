//! The programs of this host with the most CPU time in the last seconds, beside this one.

use std::{
    collections::{BTreeSet, VecDeque},
    path::PathBuf,
};

use fathom_model::{record::ProgramTime, units::Nanos};
use fathom_monitor::{ProgramTimes, socket_inodes};

use crate::pace::ReadingPace;

/// A person looks at the first ones.
const SHOWN_MAX: usize = 3;
/// A little less than a second, so that an interval of 1 s that ends early is not left out.
const READ_EVERY: Nanos = Nanos::from_millis(900);
/// The most descriptors of a program that are looked at: some milliseconds of work.
const DESCRIPTORS_MAX: usize = 4096;

/// The newest readings of the CPU times of all programs.
pub(crate) struct ProgramReadings {
    root: PathBuf,
    /// The clock of the CPU time of this thread.
    cpu: fn() -> Nanos,
    kept: Nanos,
    pace: ReadingPace,
    readings: VecDeque<(Nanos, ProgramTimes)>,
}

impl ProgramReadings {
    /// Creates an empty list that keeps readings for this long; `cpu` is the clock of this thread's CPU time.
    pub(crate) fn new(root: impl Into<PathBuf>, kept: Nanos, cpu: fn() -> Nanos) -> Self {
        Self { root: root.into(), cpu, kept, pace: ReadingPace::new(READ_EVERY), readings: VecDeque::new() }
    }

    /// Reads all programs, if that is due; `now` is the monotonic clock.
    pub(crate) fn read(&mut self, now: Nanos) {
        if !self.pace.is_due(now) {
            return;
        }
        let began = (self.cpu)();
        self.readings.push_back((now, ProgramTimes::read(&self.root)));
        self.pace.took(now, (self.cpu)().since(began));
        while self.readings.len() > 2 && self.readings.front().is_some_and(|(at, _)| now.since(*at) > self.kept) {
            self.readings.pop_front();
        }
    }

    /// Returns the few programs with the most CPU time since about this time, which is before the newest reading.
    pub(crate) fn busiest_since(&self, time: Nanos) -> Vec<ProgramTime> {
        let nearest = self.readings.iter().min_by_key(|(at, _)| at.since(time).max(time.since(*at)));
        let (Some((from, earlier)), Some((to, later))) = (nearest, self.readings.back()) else { return Vec::new() };
        if from == to {
            return Vec::new();
        }
        let mut busiest = later.busiest_since(earlier, to.since(*from));
        busiest.truncate(SHOWN_MAX);
        busiest
    }

    /// Returns the busiest programs between the newest two readings, each with the inodes of its sockets.
    pub(crate) fn with_sockets(&self) -> Vec<(ProgramTime, BTreeSet<u64>)> {
        let Some((before, _)) = self.readings.iter().rev().nth(1) else { return Vec::new() };
        let with_sockets = |program: ProgramTime| {
            let inodes = socket_inodes(&self.root, program.pid, DESCRIPTORS_MAX);
            (program, inodes)
        };
        self.busiest_since(*before).into_iter().map(with_sockets).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Writes the time of a process in ticks, and two cores.
    fn write_process(root: &Path, pid: u32, name: &str, ticks: u64) {
        fs::create_dir_all(root.join(format!("proc/{pid}"))).unwrap();
        let text = format!("{pid} ({name}) R 1 1 1 0 -1 4194304 9 9 9 9 {ticks} 0 0 0 20 0 1 0 77 1 1\n");
        fs::write(root.join(format!("proc/{pid}/stat")), text).unwrap();
        fs::write(root.join("proc/stat"), "cpu0 1 0 0 0\ncpu1 1 0 0 0\n").unwrap();
    }

    #[test]
    fn a_busy_program_is_named_and_readings_are_kept_for_a_time_only() {
        let root = tempfile::tempdir().unwrap();
        let mut readings = ProgramReadings::new(root.path(), Nanos::from_secs(2), || Nanos::ZERO);
        for second in 0..3 {
            write_process(root.path(), 11, "yes", 90 * second);
            write_process(root.path(), 12, "sshd", second / 2);
            readings.read(Nanos::from_secs(second));
        }
        let busiest = readings.busiest_since(Nanos::from_secs(1));
        let told: Vec<_> = busiest.iter().map(|program| (program.name.as_str(), program.pid, program.cpu_ns)).collect();
        assert_eq!(told, [("yes", 11, Nanos::from_millis(900))]);
        for second in 10..20 {
            readings.read(Nanos::from_secs(second));
        }
        assert_eq!(readings.readings.len(), 3);
    }
}
