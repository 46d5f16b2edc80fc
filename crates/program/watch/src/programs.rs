//! The programs of this host with the most CPU time in the last seconds, beside this one.

use std::{
    collections::{BTreeSet, VecDeque},
    path::PathBuf,
};

use fathom_model::{record::ProgramTime, units::Nanos};
use fathom_monitor::{ProgramReader, ProgramTimes, socket_inodes};

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
    reader: ProgramReader,
    /// The clock of the CPU time of this thread.
    cpu: fn() -> Nanos,
    kept: Nanos,
    pace: ReadingPace,
    readings: VecDeque<(Nanos, ProgramTimes)>,
    /// Whether a reading was due that nobody wanted.
    rests: bool,
}

impl ProgramReadings {
    /// Creates an empty list that keeps readings for this long; `cpu` is the clock of this thread's CPU time.
    pub(crate) fn new(root: impl Into<PathBuf>, kept: Nanos, cpu: fn() -> Nanos) -> Self {
        let root = root.into();
        Self {
            reader: ProgramReader::new(&root),
            root,
            cpu,
            kept,
            pace: ReadingPace::new(READ_EVERY),
            readings: VecDeque::new(),
            rests: false,
        }
    }

    /// Reads all programs, if that is due and wanted; `now` is the monotonic clock. The first two readings need no wish, because the first view may
    /// be the only one.
    pub(crate) fn read(&mut self, now: Nanos, is_wanted: bool) {
        if !self.pace.is_due(now) {
            return;
        }
        if !is_wanted && !self.pace.is_first_rate() {
            self.rests = true;
            return;
        }
        if std::mem::take(&mut self.rests) {
            // A rate needs two readings, and what was used long ago is not what is used now.
            self.pace.begin_anew();
            self.readings.retain(|(at, _)| now.since(*at) <= self.kept);
        }
        let began = (self.cpu)();
        self.readings.push_back((now, self.reader.read()));
        self.pace.took(now, (self.cpu)().since(began));
        // The time that is kept begins after the oldest reading.
        while self.readings.len() > 2 && self.readings.get(1).is_some_and(|(at, _)| now.since(*at) >= self.kept) {
            self.readings.pop_front();
        }
    }

    /// Returns the few programs with the most CPU time since about this time, and the span in which they used it: that of two readings, which are
    /// made less often than samples are taken.
    pub(crate) fn busiest_since(&self, time: Nanos) -> (Vec<ProgramTime>, Nanos) {
        let nobody = || (Vec::new(), Nanos::ZERO);
        let Some((to, later)) = self.readings.back().filter(|(to, _)| *to > time) else { return nobody() };
        let mut others = self.readings.iter().rev().skip(1);
        let before = others.find(|(at, _)| *at <= time).or(self.readings.front()).filter(|(from, _)| from < to);
        let Some((from, earlier)) = before else { return nobody() };
        let span = to.since(*from);
        let mut busiest = later.busiest_since(earlier, span);
        busiest.truncate(SHOWN_MAX);
        (busiest, span)
    }

    /// Returns the busiest programs between the newest two readings, each with the inodes of its sockets; none while nobody wants them, because their
    /// numbers may be those of others by now.
    pub(crate) fn with_sockets(&self) -> Vec<(ProgramTime, BTreeSet<u64>)> {
        let before = self.readings.iter().rev().nth(1).filter(|_| !self.rests);
        let Some((before, _)) = before else { return Vec::new() };
        let with_sockets = |program: ProgramTime| {
            let inodes = socket_inodes(&self.root, program.pid, DESCRIPTORS_MAX);
            (program, inodes)
        };
        self.busiest_since(*before).0.into_iter().map(with_sockets).collect()
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
            readings.read(Nanos::from_secs(second), true);
        }
        let (busiest, span) = readings.busiest_since(Nanos::from_secs(1));
        let told: Vec<_> = busiest.iter().map(|program| (program.name.as_str(), program.pid, program.cpu_ns)).collect();
        assert_eq!((told, span), (vec![("yes", 11, Nanos::from_millis(900))], Nanos::from_secs(1)));
        assert_eq!(readings.busiest_since(Nanos::from_secs(5)).0, [], "what was read before says nothing of it");
        for second in 10..20 {
            readings.read(Nanos::from_secs(second), true);
        }
        assert_eq!(readings.readings.len(), 3);
    }

    #[test]
    fn programs_are_read_twice_and_then_only_while_that_is_wanted() {
        let root = tempfile::tempdir().unwrap();
        let mut readings = ProgramReadings::new(root.path(), Nanos::from_secs(10), || Nanos::ZERO);
        let mut read_at = |second: u64, is_wanted| {
            write_process(root.path(), 11, "yes", 90 * second);
            readings.read(Nanos::from_secs(second), is_wanted);
            let (busiest, span) = readings.busiest_since(Nanos::from_secs(second.saturating_sub(10)));
            busiest.first().map(|program| (program.cpu_ns.0 / 1_000_000, span.0 / 1_000_000_000))
        };
        assert_eq!((read_at(0, false), read_at(1, false)), (None, Some((900, 1))));
        assert_eq!(
            (read_at(2, false), read_at(3, true), read_at(4, true)),
            (Some((900, 1)), Some((2_700, 3)), Some((3_600, 4)))
        );
        assert_eq!((read_at(5, false), read_at(14, false)), (Some((3_600, 4)), None), "nobody looked since");
        // What it did in the hour before is not what it does now.
        assert_eq!((read_at(3_600, true), read_at(3_601, true)), (None, Some((900, 1))));
    }
}
