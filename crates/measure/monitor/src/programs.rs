//! The programs of a host with the most CPU time during a test, beside the test itself (proc(5): `/proc/PID/stat`).
//!
//! They are read at two times: in a test at the first and at the last sample. A program that begins or ends in between counts with its parent, as
//! soon as the parent has waited for it; a compiler's many short processes are therefore told as its build tool.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use fathom_model::{record::ProgramTime, units::Nanos};

/// The most programs that a record names.
const NAMED_MAX: usize = 3;
/// Below this share of a core, a program is not named.
const CORE_SHARE_MIN: f64 = 0.01;
/// The clock ticks of /proc are hundredths of a second on every architecture (`USER_HZ`).
const TICK: Nanos = Nanos::from_millis(10);
/// The flag of kernel threads, whose work may be the test's (`PF_KTHREAD`, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// `TCP_LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The CPU times of all programs at one time.
#[derive(Debug, Default)]
pub struct ProgramTimes(BTreeMap<u32, ProgramStat>);

/// A program, as `/proc/PID/stat` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProgramStat {
    name: String,
    parent: u32,
    /// When it began, in ticks since boot: a new process may have the number of an earlier one.
    began: u64,
    /// The ticks of its own threads and of the children that it has waited for.
    ticks: u64,
    n_threads: u32,
}

impl ProgramTimes {
    /// Reads all processes but kernel threads and those of this program's name, which are the test's.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/stat")).ok().and_then(|text| Some(parse(&text)?.name));
        let Ok(entries) = fs::read_dir(root.join("proc")) else { return Self::default() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let stat = |pid| parse(&fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?);
        let all = pids.filter_map(|pid| Some((pid, stat(pid)?)));
        Self(all.filter(|(_, stat)| own.as_ref() != Some(&stat.name)).collect())
    }

    /// Returns the programs with the most CPU time since an earlier reading, the greatest first, with the ports that they listen on.
    pub(crate) fn most_since(&self, earlier: &Self, span: Nanos, root: &Path) -> Vec<ProgramTime> {
        let mut most = self.busiest_since(earlier, span);
        for program in &mut most {
            program.listens = listening_ports(root, program.pid);
        }
        most
    }

    /// Returns the programs with the most CPU time since an earlier reading, the greatest first.
    #[must_use]
    pub fn busiest_since(&self, earlier: &Self, span: Nanos) -> Vec<ProgramTime> {
        let least = span.as_secs_f64() * CORE_SHARE_MIN;
        let mut all: Vec<_> = self.grown_since(earlier).filter(|(cpu, ..)| cpu.as_secs_f64() > least).collect();
        all.sort_by_key(|(cpu, ..)| Reverse(*cpu));
        let program = |(cpu_ns, pid, stat): (Nanos, u32, &ProgramStat)| ProgramTime {
            name: stat.name.clone(),
            pid,
            cpu_ns,
            n_threads: stat.n_threads,
            listens: Vec::new(),
        };
        all.into_iter().take(NAMED_MAX).map(program).collect()
    }

    fn grown_since<'a>(&'a self, earlier: &'a Self) -> impl Iterator<Item = (Nanos, u32, &'a ProgramStat)> {
        let same =
            |of: &Self, pid: &u32, began: u64| of.0.get(pid).filter(|stat| stat.began == began).map(|stat| stat.ticks);
        // The past of children that ended goes to their parents at once.
        let mut inherited: BTreeMap<u32, u64> = BTreeMap::new();
        for (_, stat) in earlier.0.iter().filter(|(pid, stat)| same(self, pid, stat.began).is_none()) {
            *inherited.entry(stat.parent).or_default() += stat.ticks;
        }
        self.0.iter().map(move |(pid, stat)| {
            let past = same(earlier, pid, stat.began).unwrap_or(0) + inherited.get(pid).copied().unwrap_or(0);
            (Nanos(stat.ticks.saturating_sub(past).saturating_mul(TICK.0)), *pid, stat)
        })
    }
}

/// Parses a line of `/proc/PID/stat`; `None` for kernel threads. The name stands in parentheses and may contain any character.
fn parse(text: &str) -> Option<ProgramStat> {
    let (begin, end) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
    // Fields are counted from 1 in the manual, and the state behind the name is the third.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    if field(9)? & KERNEL_THREAD > 0 {
        return None;
    }
    Some(ProgramStat {
        name: text.get(begin + 1..end)?.to_owned(),
        parent: u32::try_from(field(4)?).ok()?,
        began: field(22)?,
        n_threads: u32::try_from(field(20)?).ok()?,
        ticks: (14..=17).map(field).try_fold(0_u64, |sum, ticks| sum.checked_add(ticks?))?,
    })
}

/// Returns the TCP ports that a process listens on, in its network namespace; none if its descriptors may not be read.
fn listening_ports(root: &Path, pid: u32) -> Vec<u16> {
    let process: PathBuf = root.join(format!("proc/{pid}"));
    let inodes = socket_inodes(root, pid, usize::MAX);
    if inodes.is_empty() {
        return Vec::new();
    }
    let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(process.join(table)).unwrap_or_default());
    let ports: BTreeSet<u16> =
        tables.iter().flat_map(|table| table.lines()).filter_map(|line| listener(line, &inodes)).collect();
    ports.into_iter().collect()
}

/// Returns the inodes of the sockets among a process's first descriptors; none if they may not be read.
#[must_use]
pub fn socket_inodes(root: &Path, pid: u32, n_descriptors: usize) -> BTreeSet<u64> {
    let Ok(descriptors) = fs::read_dir(root.join(format!("proc/{pid}/fd"))) else { return BTreeSet::new() };
    let inode = |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    let links = descriptors.take(n_descriptors).flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter_map(inode).collect()
}

/// Returns the port of a line of `/proc/net/tcp` if its socket listens and is one of these.
fn listener(line: &str, inodes: &BTreeSet<u64>) -> Option<u16> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?.parse().ok()?);
    let port = local.rsplit_once(':')?.1;
    (*state == LISTEN && inodes.contains(&inode)).then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        process::{Command, Stdio},
    };

    use super::*;

    fn stat(pid: u32, name: &str, parent: u32, ticks: u64) -> String {
        format!("{pid} ({name}) R {parent} 1 1 0 -1 4194304 9 9 9 9 {ticks} 0 0 0 20 0 1 0 {} 1 1", 1000 + pid)
    }

    fn times(all: &[(u32, &str, u32, u64)]) -> ProgramTimes {
        let parsed =
            all.iter().map(|(pid, name, parent, ticks)| (*pid, parse(&stat(*pid, name, *parent, *ticks)).unwrap()));
        ProgramTimes(parsed.collect())
    }

    #[test]
    fn a_name_may_hold_anything_and_kernel_threads_are_left_out() {
        let parsed = parse(&stat(7, "a) (b c", 3, 250)).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.parent, parsed.ticks, parsed.began), ("a) (b c", 3, 250, 1007));
        assert_eq!(parse("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 9 0 0 20 0 1 0 5 0 0"), None);
        assert_eq!(parse("7 (x"), None);
    }

    #[test]
    fn the_greatest_come_first_and_the_past_of_a_child_that_ended_is_not_its_parents() {
        let before = times(&[(1, "init", 0, 5), (10, "make", 1, 100), (11, "cc1", 10, 900), (12, "db", 1, 50)]);
        let after = times(&[(1, "init", 0, 5), (10, "make", 1, 1010), (12, "db", 1, 90), (13, "new", 1, 30)]);
        let found = after.most_since(&before, Nanos::from_secs(1), Path::new("/nowhere"));
        let told: Vec<_> = found.iter().map(|program| (program.name.as_str(), program.cpu_ns)).collect();
        let millis = Nanos::from_millis;
        assert_eq!(told, [("db", millis(400)), ("new", millis(300)), ("make", millis(100))]);
    }

    #[test]
    fn a_busy_program_of_this_machine_is_found_with_its_time() {
        let before = ProgramTimes::read(Path::new("/"));
        let mut busy = Command::new("yes").stdout(Stdio::null()).spawn().unwrap();
        let grown = loop {
            let now = ProgramTimes::read(Path::new("/"));
            let found = now.grown_since(&before).find(|(_, pid, _)| *pid == busy.id());
            if let Some((cpu, _, stat)) = found.filter(|(cpu, ..)| *cpu >= TICK * 3) {
                break (cpu, stat.name.clone());
            }
        };
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(grown.1 == "yes" && grown.0 < Nanos::from_secs(60), "{grown:?}");
    }

    #[test]
    fn the_ports_of_listeners_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = listening_ports(Path::new("/"), std::process::id());
        assert!(found.contains(&listener.local_addr().unwrap().port()), "{found:?}");
    }

    #[test]
    fn a_listener_is_a_socket_of_the_process_in_the_state_of_listening() {
        let line = "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        assert_eq!(listener(line, &[4711].into()), Some(8080));
        assert_eq!((listener(line, &[1].into()), listener("  sl  local_address", &[1].into())), (None, None));
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), &[4711].into()), None);
    }
}
