//! The programs of a host with the most CPU time during a test, beside the test itself (proc(5): `/proc/PID/stat`).
//!
//! They are read at two times: in a test at the first and at the last sample. A program that begins or ends in between counts with its parent, as
//! soon as the parent has waited for it; a compiler's many short processes are therefore told as its build tool.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{BufRead, BufReader, Read as _},
    net::{IpAddr, Ipv6Addr},
    os::unix::fs::DirEntryExt as _,
    path::{Path, PathBuf},
};

use fathom_model::{HostRecord, record::ProgramTime, units::Nanos};

use crate::procfs::read_short;

/// So many threads of a server are read: a pool rarely has more, and those of one wait alike.
const THREADS_READ: usize = 256;
/// The first descriptors of a program, among which its listeners are: it opens them before its connections. A link takes a microsecond to read.
const LISTENERS_WITHIN: usize = 1 << 14;
/// Below this share of a core, a program is not named.
pub(crate) const CORE_SHARE_MIN: f64 = 0.01;
/// The clock ticks of /proc are hundredths of a second on every architecture (`USER_HZ`).
const TICK: Nanos = Nanos::from_millis(10);
/// The flag of kernel threads, whose work may be the test's (`PF_KTHREAD`, include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// The name of the kernel threads of softirqs, one for each core (`kernel/softirq.c`).
const SOFTIRQ_THREAD: &str = "ksoftirqd/";
/// `TCP_LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";
/// The bytes of a table that are read at once: as many as the kernel gives in one call.
const TABLE_PIECE: usize = 4096;
/// The bytes of a table of addresses. A router with more routes is not the server of a test.
const ADDRESS_TABLE: u64 = 256 << 10;

/// Reads the CPU times of all programs, again and again.
#[derive(Debug)]
pub struct ProgramReader {
    root: PathBuf,
    /// The name of this program, whose processes are the test's.
    own_name: Option<String>,
    /// The inodes of the directories of kernel threads, most processes of a quiet host. Another process with such a number has another inode.
    kernel_threads: BTreeMap<u32, u64>,
}

/// The CPU times of all programs at one time.
#[derive(Debug, Default)]
pub struct ProgramTimes {
    by_pid: BTreeMap<u32, ProgramStat>,
    /// The name of this program, whose processes are the test's.
    own_name: Option<String>,
    n_cores: u64,
    /// The ticks of each kernel thread that was read anew, with the time when it began, without those of softirqs: a host counts these by core.
    of_kernel: BTreeMap<u32, (u64, u64)>,
}

/// A program, as `/proc/PID/stat` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProgramStat {
    name: String,
    parent: u32,
    /// When it began, in ticks since boot: a new process may have the number of an earlier one.
    began: u64,
    /// The ticks of its own threads.
    own_ticks: u64,
    /// The ticks of the children that it has waited for, and of theirs.
    child_ticks: u64,
    n_threads: u32,
}

impl ProgramStat {
    fn ticks(&self) -> u64 {
        self.own_ticks.saturating_add(self.child_ticks)
    }
}

impl ProgramReader {
    /// Creates a reader of the processes below a root.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let own = Process::read(&root.join("proc/self/stat")).and_then(Process::program);
        Self { root, own_name: own.map(|stat| stat.name), kernel_threads: BTreeMap::new() }
    }

    /// Reads all processes; kernel threads only the first time.
    #[must_use]
    pub fn read(&mut self) -> ProgramTimes {
        let (mut by_pid, mut of_kernel) = (BTreeMap::new(), BTreeMap::new());
        let mut kernel_threads = BTreeMap::new();
        for entry in fs::read_dir(self.root.join("proc")).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let inode = entry.ino();
            let process = if self.kernel_threads.get(&pid) == Some(&inode) {
                Some(Process::KernelThread(None))
            } else {
                Process::read(&self.root.join(format!("proc/{pid}/stat")))
            };
            match process {
                Some(Process::Program(stat)) => drop(by_pid.insert(pid, stat)),
                Some(Process::KernelThread(times)) => {
                    kernel_threads.insert(pid, inode);
                    of_kernel.extend(times.map(|times| (pid, times)));
                }
                // It ended.
                None => {}
            }
        }
        self.kernel_threads = kernel_threads;
        let cores = fs::read_to_string(self.root.join("proc/stat")).unwrap_or_default();
        let is_core =
            |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let n_cores = u64::try_from(cores.lines().filter(is_core).count()).unwrap_or(1).max(1);
        ProgramTimes { by_pid, own_name: self.own_name.clone(), n_cores, of_kernel }
    }
}

impl ProgramTimes {
    /// Returns the programs but the test's with the most CPU time since an earlier reading, the greatest first.
    #[must_use]
    pub fn busiest_since(&self, earlier: &Self, span: Nanos) -> Vec<ProgramTime> {
        let least = span.as_secs_f64() * CORE_SHARE_MIN;
        let mut all = self.others_since(earlier, span);
        all.truncate(HostRecord::PROGRAMS_MAX);
        all.retain(|program| program.cpu_ns.as_secs_f64() > least);
        all
    }

    /// Returns all programs but the test's, those with the most CPU time since an earlier reading first.
    pub(crate) fn others_since(&self, earlier: &Self, span: Nanos) -> Vec<ProgramTime> {
        let grown = self.grown_since(earlier, span);
        let mut all: Vec<_> = grown.filter(|(_, _, stat)| self.own_name.as_ref() != Some(&stat.name)).collect();
        all.sort_by_key(|(cpu, ..)| Reverse(*cpu));
        let program = |(cpu_ns, pid, stat): (Nanos, u32, &ProgramStat)| ProgramTime {
            name: stat.name.clone(),
            pid,
            cpu_ns,
            n_threads: stat.n_threads,
            ..ProgramTime::default()
        };
        all.into_iter().map(program).collect()
    }

    /// Returns the CPU time of kernel threads since an earlier reading by another reader; `None` if they cannot be seen, as from a container or where
    /// processes of others are hidden (`hidepid` of proc(5)).
    pub(crate) fn kernel_threads_since(&self, earlier: &Self) -> Option<Nanos> {
        let grown = self.of_kernel.iter().map(|(pid, (began, ticks))| {
            let past = earlier.of_kernel.get(pid).filter(|(before, _)| before == began).map_or(0, |(_, ticks)| *ticks);
            ticks.saturating_sub(past)
        });
        let ticks: u64 = grown.sum();
        (!self.of_kernel.is_empty()).then_some(Nanos(ticks.saturating_mul(TICK.0)))
    }

    /// The numbers of all processes that were read.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.by_pid.keys().copied()
    }

    /// Returns the CPU time of each program in a span.
    ///
    /// A parent inherits the whole life of a child that ends: what the child, and its own children that ended, had used before the span is not
    /// the parent's. A child whose parent ended first is inherited by a process that no reading names; the time of children is left out where
    /// it exceeds that of all cores.
    fn grown_since<'a>(
        &'a self,
        earlier: &'a Self,
        span: Nanos,
    ) -> impl Iterator<Item = (Nanos, u32, &'a ProgramStat)> {
        let inherited = self.inherited_since(earlier);
        let capacity = span.0.saturating_mul(self.n_cores);
        self.by_pid.iter().map(move |(pid, stat)| {
            let past = earlier.same(*pid, stat.began);
            let own = stat.own_ticks.saturating_sub(past.map_or(0, |past| past.own_ticks)).saturating_mul(TICK.0);
            let before = past.map_or(0, |past| past.child_ticks) + inherited.get(pid).copied().unwrap_or(0);
            let children = stat.child_ticks.saturating_sub(before).saturating_mul(TICK.0);
            let all = own.saturating_add(children);
            (Nanos(if all <= capacity { all } else { own }), *pid, stat)
        })
    }

    /// Returns the ticks that each process inherited from processes that an earlier reading knows and that ended.
    fn inherited_since(&self, earlier: &Self) -> BTreeMap<u32, u64> {
        let is_gone = |pid: u32| earlier.by_pid.get(&pid).is_some_and(|stat| self.same(pid, stat.began).is_none());
        let mut inherited: BTreeMap<u32, u64> = BTreeMap::new();
        for stat in earlier.by_pid.iter().filter(|(pid, _)| is_gone(**pid)).map(|(_, stat)| stat) {
            // Its parent may have ended too; a chain is no longer than there are processes.
            let mut heir = stat.parent;
            for _ in 0..earlier.by_pid.len() {
                match earlier.by_pid.get(&heir).filter(|_| is_gone(heir)) {
                    Some(gone) => heir = gone.parent,
                    None => break,
                }
            }
            *inherited.entry(heir).or_default() += stat.ticks();
        }
        inherited
    }

    /// Returns the process with this number that began at this time.
    fn same(&self, pid: u32, began: u64) -> Option<&ProgramStat> {
        self.by_pid.get(&pid).filter(|stat| stat.began == began)
    }
}

/// A process, by its `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
enum Process {
    Program(ProgramStat),
    /// A kernel thread, with the time when it began and its ticks, unless they are those of softirqs or were not read.
    KernelThread(Option<(u64, u64)>),
}

impl Process {
    /// Reads a file of this form; `None` if the process ended.
    fn read(path: &Path) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&read_short(path).ok()?))
    }

    /// Parses the line. The name stands in parentheses and may contain any character.
    fn parse(text: &str) -> Option<Self> {
        let (begin, end) = (text.find('(')?, text.rfind(')')?);
        let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
        // Fields are counted from 1 in the manual, and the state behind the name is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let (name, own_ticks) = (text.get(begin + 1..end)?, field(14)?.checked_add(field(15)?)?);
        if field(9)? & KERNEL_THREAD > 0 {
            return Some(Self::KernelThread((!name.starts_with(SOFTIRQ_THREAD)).then_some((field(22)?, own_ticks))));
        }
        Some(Self::Program(ProgramStat {
            name: name.to_owned(),
            parent: u32::try_from(field(4)?).ok()?,
            began: field(22)?,
            n_threads: u32::try_from(field(20)?).ok()?,
            own_ticks,
            child_ticks: field(16)?.checked_add(field(17)?)?,
        }))
    }

    fn program(self) -> Option<ProgramStat> {
        match self {
            Self::Program(stat) => Some(stat),
            Self::KernelThread(_) => None,
        }
    }
}

/// Adds what tells a server: the ports that a program listens on, the addresses of its network namespace, and the time of its other threads.
pub(crate) fn add_listeners(root: &Path, program: &mut ProgramTime) {
    program.listens = listening_ports(root, program.pid);
    if !program.listens.is_empty() {
        program.addresses = addresses(root, program.pid);
        program.others_ns = others_time(root, program.pid);
        program.waited_ns = waited_time(root, program.pid);
    }
}

/// Returns the time that the threads of a process waited for a core since they began: the second number of `/proc/PID/task/TID/schedstat`
/// (Documentation/scheduler/sched-stats.rst). Only the first [`THREADS_READ`] of them are read.
fn waited_time(root: &Path, pid: u32) -> Option<Nanos> {
    let threads = fs::read_dir(root.join(format!("proc/{pid}/task"))).ok()?.take(THREADS_READ).flatten();
    let waited = |thread: fs::DirEntry| -> Option<u64> {
        let text = read_short(&thread.path().join("schedstat")).ok()?;
        String::from_utf8_lossy(&text).split_whitespace().nth(1)?.parse().ok()
    };
    threads.filter_map(waited).reduce(u64::saturating_add).map(Nanos)
}

/// Returns the CPU time of a process since it began without that of its first thread: of its other threads, those that ended among them, and
/// of its children that ended (proc(5): `/proc/PID/stat`, `/proc/PID/task/TID/stat`).
fn others_time(root: &Path, pid: u32) -> Option<Nanos> {
    let stat = |name: String| Process::read(&root.join(format!("proc/{pid}/{name}")))?.program();
    let first = stat(format!("task/{pid}/stat"))?;
    Some(Nanos(stat("stat".to_owned())?.ticks().saturating_sub(first.own_ticks).saturating_mul(TICK.0)))
}

/// Returns the addresses of the network namespace of a process; those of the loopback device only if it is this program's.
fn addresses(root: &Path, pid: u32) -> Vec<IpAddr> {
    let process = root.join(format!("proc/{pid}"));
    let namespace = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let is_here = namespace(&process).is_some_and(|its| namespace(&root.join("proc/self")) == Some(its));
    let table = |name: &str| {
        let mut text = String::new();
        let read = File::open(process.join(name)).and_then(|file| file.take(ADDRESS_TABLE).read_to_string(&mut text));
        // The rest of a longer table may have more.
        read.ok().filter(|size| u64::try_from(*size).is_ok_and(|size| size < ADDRESS_TABLE)).map(|_| text)
    };
    let Some(routes) = table("net/fib_trie") else { return Vec::new() };
    let all: BTreeSet<IpAddr> =
        addresses_v4(&routes).chain(addresses_v6(&table("net/if_inet6").unwrap_or_default())).collect();
    all.into_iter().filter(|address| is_here || !address.is_loopback()).collect()
}

/// Returns the addresses of the namespace whose routes these are: an entry `/32 host LOCAL` stands below its address.
fn addresses_v4(routes: &str) -> impl Iterator<Item = IpAddr> {
    let mut address = None;
    routes.lines().filter_map(move |line| {
        let line = line.trim_start();
        if let Some(text) = line.strip_prefix("|-- ") {
            address = text.parse().ok();
        }
        line.starts_with("/32 host LOCAL").then_some(address)?
    })
}

/// Returns the addresses in the lines of `/proc/net/if_inet6`, which begin with 32 digits.
fn addresses_v6(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().filter_map(|line| Some(Ipv6Addr::from(u128::from_str_radix(line.get(..32)?, 16).ok()?).into()))
}

/// Returns the TCP ports that a process listens on, in its network namespace; none if its descriptors may not be read.
fn listening_ports(root: &Path, pid: u32) -> Vec<u16> {
    let process: PathBuf = root.join(format!("proc/{pid}"));
    let inodes = socket_inodes(root, pid, LISTENERS_WITHIN);
    if inodes.is_empty() {
        return Vec::new();
    }
    let tables = ["net/tcp", "net/tcp6"].into_iter().filter_map(|table| File::open(process.join(table)).ok());
    let listeners = tables.flat_map(|table| listeners(BufReader::with_capacity(TABLE_PIECE, table)));
    let ports: BTreeSet<u16> = listeners.filter(|(_, inode)| inodes.contains(inode)).map(|(port, _)| port).collect();
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

/// The ports and inodes of the listeners in a table such as `/proc/net/tcp`.
///
/// They come first (`Documentation/networking/proc_net_tcp.rst`), and nothing behind them is read: a busy server has many thousand connections,
/// and the kernel writes a line for each that is asked for.
fn listeners(table: impl BufRead) -> impl Iterator<Item = (u16, u64)> {
    table.lines().skip(1).map_while(|line| listener(&line.ok()?))
}

/// Returns the port and the inode of a line if its socket listens.
fn listener(line: &str) -> Option<(u16, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?.parse().ok()?);
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (*state == LISTEN).then_some((port, inode))
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        process::{Command, Stdio},
    };

    use super::*;

    /// A line with the ticks of a process and of its children.
    fn stat(pid: u32, name: &str, parent: u32, (own, children): (u64, u64)) -> String {
        format!("{pid} ({name}) R {parent} 1 1 0 -1 4194304 9 9 9 9 {own} 0 {children} 0 20 0 1 0 {} 1 1", 1000 + pid)
    }

    fn program(text: &str) -> ProgramStat {
        Process::parse(text).unwrap().program().unwrap()
    }

    fn times(all: &[(u32, &str, u32, (u64, u64))]) -> ProgramTimes {
        let parsed = all.iter().map(|(pid, name, parent, ticks)| (*pid, program(&stat(*pid, name, *parent, *ticks))));
        let own_name = Some("fathom".to_owned());
        ProgramTimes { by_pid: parsed.collect(), own_name, n_cores: 2, of_kernel: BTreeMap::new() }
    }

    /// The programs with their milliseconds in a second.
    fn told(before: &ProgramTimes, after: &ProgramTimes) -> Vec<(String, u64)> {
        let found = after.busiest_since(before, Nanos::from_secs(1));
        found.into_iter().map(|program| (program.name, program.cpu_ns.0 / 1_000_000)).collect()
    }

    #[test]
    fn a_name_may_hold_anything_and_kernel_threads_are_left_out() {
        let parsed = program(&stat(7, "a) (b c", 3, (200, 50)));
        assert_eq!((parsed.name.as_str(), parsed.parent, parsed.ticks(), parsed.began), ("a) (b c", 3, 250, 1007));
        assert_eq!(
            Process::parse("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 9 0 0 20 0 1 0 5 0 0"),
            Some(Process::KernelThread(Some((5, 9))))
        );
        let of_softirqs = Process::parse("14 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 0 9 0 0 20 0 1 0 5 0 0");
        assert_eq!(of_softirqs, Some(Process::KernelThread(None)), "a host counts its softirqs by core");
        assert_eq!(Process::parse("7 (x"), None);
    }

    #[test]
    fn a_program_with_the_number_of_a_kernel_thread_that_ended_is_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(root.path().join(format!("proc/{name}"))).unwrap();
            fs::write(root.path().join(format!("proc/{name}/stat")), text).unwrap();
        };
        write("2", "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 9 0 0 20 0 1 0 5 0 0");
        let mut reader = ProgramReader::new(root.path());
        let mut pids = || reader.read().pids().collect::<Vec<_>>();
        assert_eq!((pids(), pids()), (vec![], vec![]));
        write("new", &stat(2, "yes", 1, (5, 0)));
        fs::remove_dir_all(root.path().join("proc/2")).unwrap();
        fs::rename(root.path().join("proc/new"), root.path().join("proc/2")).unwrap();
        assert_eq!(pids(), [2]);
    }

    #[test]
    fn the_greatest_come_first_and_the_past_of_a_child_that_ended_is_not_its_parents() {
        let before = times(&[
            (1, "init", 0, (5, 0)),
            (10, "make", 1, (4, 96)),
            (11, "cc1", 10, (900, 0)),
            (12, "db", 1, (50, 0)),
        ]);
        let after = times(&[
            (1, "init", 0, (5, 0)),
            (10, "make", 1, (4, 1006)),
            (12, "db", 1, (90, 0)),
            (13, "new", 1, (30, 0)),
        ]);
        let expected = [("db", 400), ("new", 300), ("make", 100)];
        assert_eq!(told(&before, &after), expected.map(|(name, millis)| (name.to_owned(), millis)));
    }

    #[test]
    fn the_past_of_a_family_that_ended_is_not_that_of_the_shell_that_waited_for_it() {
        let shell = |children| (10, "bash", 1, (1, children));
        let before = times(&[
            shell(0),
            (11, "cargo", 10, (200, 3_000)),
            (12, "rustc", 11, (900, 0)),
            (13, "fathom", 10, (70, 0)),
        ]);
        // All three ended; the family used 40 ticks in this second, and the other program of the test 10.
        let after = times(&[shell(200 + 3_000 + 900 + 40 + 70 + 10)]);
        assert_eq!(told(&before, &after), [("bash".to_owned(), 500)]);
    }

    #[test]
    fn kernel_threads_have_the_time_since_they_were_read_before_or_began() {
        let of_kernel =
            |all: &[(u32, (u64, u64))]| ProgramTimes { of_kernel: all.iter().copied().collect(), ..times(&[]) };
        let before = of_kernel(&[(2, (5, 100)), (7, (9, 400))]);
        let after = of_kernel(&[(2, (5, 130)), (7, (80, 20)), (8, (81, 1))]);
        assert_eq!(after.kernel_threads_since(&before), Some(Nanos::from_millis(510)), "the number 7 was given anew");
        assert_eq!(times(&[]).kernel_threads_since(&times(&[])), None, "a container sees none");
    }

    #[test]
    fn more_time_than_all_cores_have_is_no_programs() {
        let before = times(&[(1, "init", 0, (5, 0)), (12, "fathom", 1, (0, 0))]);
        let after = times(&[(1, "init", 0, (25, 4_000)), (12, "fathom", 1, (90, 0))]);
        assert_eq!(told(&before, &after), [("init".to_owned(), 200)], "it was made the parent of an older process");
    }

    #[test]
    fn a_busy_program_of_this_machine_is_found_with_its_time() {
        let before = ProgramReader::new("/").read();
        let mut busy = Command::new("yes").stdout(Stdio::null()).spawn().unwrap();
        let grown = loop {
            let now = ProgramReader::new("/").read();
            let found = now.grown_since(&before, Nanos::from_secs(60)).find(|(_, pid, _)| *pid == busy.id());
            if let Some((cpu, _, stat)) = found.filter(|(cpu, ..)| *cpu >= TICK * 3) {
                break (cpu, stat.name.clone());
            }
        };
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(grown.1 == "yes" && grown.0 < Nanos::from_secs(60), "{grown:?}");
    }

    #[test]
    fn the_time_of_a_thread_that_ended_is_not_that_of_the_first_one() {
        let (root, pid) = (Path::new("/"), std::process::id());
        let own = || ProgramReader::new("/").read().by_pid[&std::process::id()].own_ticks;
        let others = || others_time(root, pid).unwrap();
        let before = others();
        // The first thread of a test program waits for its tests.
        std::thread::spawn(move || {
            let begin = own();
            while own() < begin + 5 {}
        })
        .join()
        .unwrap();
        assert!(others() >= before + TICK * 4, "{before} became {}", others());
        assert_eq!(others_time(root, u32::MAX), None);
    }

    #[test]
    fn the_waits_of_all_threads_of_a_server_are_summed() {
        let root = tempfile::tempdir().unwrap();
        for (thread, waited) in [(7, 30), (8, 12)] {
            let folder = root.path().join(format!("proc/7/task/{thread}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("schedstat"), format!("5000 {waited} 9\n")).unwrap();
        }
        assert_eq!([7, 6].map(|pid| waited_time(root.path(), pid)), [Some(Nanos(42)), None]);
    }

    #[test]
    fn the_ports_of_listeners_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = listening_ports(Path::new("/"), std::process::id());
        assert!(found.contains(&listener.local_addr().unwrap().port()), "{found:?}");
    }

    #[test]
    fn the_addresses_of_a_namespace_are_those_of_its_local_routes() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.0.0\n        /24 link UNICAST\n\
            Local:\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.0\n        /8 host LOCAL\n";
        assert_eq!(addresses_v4(routes).collect::<Vec<_>>(), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        let table = "fe80000000000000001122fffe334455 02 40 20 80     eth0\nshort\n";
        assert_eq!(addresses_v6(table).collect::<Vec<_>>(), ["fe80::11:22ff:fe33:4455".parse::<IpAddr>().unwrap()]);
        assert!(addresses(Path::new("/"), std::process::id()).iter().all(|address| !address.is_unspecified()));
    }

    #[test]
    fn listeners_are_read_up_to_the_first_connection() {
        let line = |local: &str, state: &str, inode: u64| {
            format!(
                "  0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0 100 0 0 10 0\n"
            )
        };
        let head =
            "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n".to_owned();
        let lines = [
            head,
            line("0100007F:1F90", LISTEN, 4711),
            line("00000000:0050", LISTEN, 4712),
            line("0100007F:1F90", "01", 4713),
            line("0100007F:1F91", LISTEN, 4714),
        ];
        let table = lines.concat();
        assert_eq!(listeners(table.as_bytes()).collect::<Vec<_>>(), [(8080, 4711), (80, 4712)]);
        assert_eq!(listeners(lines[0].as_bytes()).count(), 0, "a host without sockets");
    }
}
