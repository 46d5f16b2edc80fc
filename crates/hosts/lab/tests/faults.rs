//! Faults that run programs or limit them: what they do, and that nothing is left of them.
//!
//! The holder of a lab and the guard of a fault are this test binary, started in its roles.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use std::{
    env, fs,
    io::{self, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use fathom_lab::{
    Entry, Error, Lab, LabName, Options, StateFolder,
    device::NoPrograms,
    down,
    fault::{self, Fault, FaultPlace, PlantedFault},
    guard,
    holder::{self, LabSpec},
    list, preset, undo_stale,
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{Pidfd, ProcessIdentity, may_administer_network},
};
use tempfile::TempDir;

/// Long enough for a busy machine, short enough for a failing test.
const PATIENCE: Nanos = Nanos::from_secs(20);

fn in_role(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([role, "--exact", "--ignored", "--nocapture", "-q"]);
    command
}

#[test]
#[ignore = "not a test: the role in which this binary holds a lab"]
fn role_of_the_holder() {
    let order = env::args().next_back().unwrap();
    // Its error was already reported, and nobody checks the exit code.
    let _ = holder::run(&order, io::stdout(), &NoPrograms);
}

#[test]
#[ignore = "not a test: the role in which this binary guards the programs of a fault"]
fn role_of_the_guard() {
    let order = env::args().next_back().unwrap();
    let _ = guard::run(&order, BufReader::new(io::stdin()), io::stdout());
}

/// A lab that is up in a state folder of its own; taken down when dropped.
struct UpLab {
    _folder: TempDir,
    state: StateFolder,
    name: LabName,
}

impl UpLab {
    /// Returns `None`, and reports it, without the privileges for a lab.
    fn up(name: &str) -> Option<Self> {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(folder.path()).unwrap();
        // Control groups are named after the lab, and tests run at once.
        let lab = Self { _folder: folder, state, name: format!("{name}-{}", std::process::id()).parse().unwrap() };
        lab.up_again();
        Some(lab)
    }

    fn up_again(&self) {
        let (preset, options) = (preset::find("pair").unwrap(), Options::default());
        let spec = LabSpec { name: &self.name, state: &self.state, preset, options: &options, lifetime: PATIENCE * 3 };
        holder::up(in_role("role_of_the_holder"), &spec).unwrap();
    }

    fn plant(&self, name: &str, values: &[&str]) -> Result<Vec<String>, Error> {
        self.plant_on("b", name, values)
    }

    fn plant_on(&self, host: &str, name: &str, values: &[&str]) -> Result<Vec<String>, Error> {
        let lab = Lab::find(&self.state, &self.name).unwrap();
        let fault = Fault::find(name).unwrap();
        let place = FaultPlace { state: &self.state, name: &self.name, lab: &lab, host };
        fault::plant(&place, fault, &fault.values_of(values.iter().copied()).unwrap(), in_role("role_of_the_guard"))
    }

    fn remove(&self, name: &str) {
        let lab = Lab::find(&self.state, &self.name).unwrap();
        fault::remove(&self.state, &self.name, &lab, name, None).unwrap();
    }

    fn planted(&self) -> Vec<PlantedFault> {
        fault::planted(&self.state, &self.name).unwrap()
    }

    /// Returns the output of a shell command on host b.
    fn on_b(&self, command: &str) -> String {
        let mut program = Command::new("sh");
        program.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped());
        let lab = Lab::find(&self.state, &self.name).unwrap();
        let output = lab.host("b").unwrap().start(program).unwrap().wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns the guard of the one planted fault.
    fn guard(&self) -> ProcessIdentity {
        let planted = self.planted();
        let [Entry::Process(guard)] = planted[0].left[..] else { panic!("{planted:?}") };
        guard
    }

    fn holder(&self) -> ProcessIdentity {
        list(&self.state).unwrap()[0].1.holder
    }
}

impl Drop for UpLab {
    fn drop(&mut self) {
        let _ = down(&self.state, &self.name);
    }
}

/// The children of a process, as the kernel tells them.
fn children(of: ProcessIdentity) -> Vec<ProcessIdentity> {
    let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", of.pid)).unwrap_or_default();
    let of_threads = fs::read_dir(format!("/proc/{}/task", of.pid)).map_or(Vec::new(), |threads| {
        let texts = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
        texts.map_while(Result::ok).collect()
    });
    let all = format!("{text} {}", of_threads.join(" "));
    let mut pids: Vec<u32> = all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().filter_map(|pid| ProcessIdentity::of(pid).ok()).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = clock::now() + PATIENCE;
    while !is_so() {
        assert!(clock::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn programs_that_a_fault_runs_end_when_it_is_removed() {
    let Some(lab) = UpLab::up("busy") else { return };
    lab.plant("busy", &["programs=3"]).unwrap();
    let guard = lab.guard();
    let programs = children(guard);
    assert_eq!((guard.is_alive(), programs.len()), (true, 3), "{programs:?}");
    lab.remove("busy");
    assert!(!guard.is_alive() && lab.planted().is_empty());
    wait_until("the programs still run", || programs.iter().all(|program| !program.is_alive()));
}

#[test]
fn a_program_on_one_core_may_use_no_other() {
    let Some(lab) = UpLab::up("busy-core") else { return };
    lab.plant("busy-core", &["core=0"]).unwrap();
    let program = children(lab.guard())[0];
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid)).unwrap();
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    lab.remove("busy-core");
    let refused = lab.plant("busy-core", &["core=1023"]).unwrap_err();
    assert!(matches!(&refused, Error::FaultCommand { why, .. } if why.contains("core 1023")), "{refused}");
    assert!(lab.planted().is_empty(), "nothing is left of a failure");
}

#[test]
fn a_killed_guard_takes_its_programs_along_and_a_killed_holder_takes_the_guard() {
    let Some(lab) = UpLab::up("killed") else { return };
    lab.plant("busy", &["programs=2"]).unwrap();
    let (guard, programs) = (lab.guard(), children(lab.guard()));
    Pidfd::open(guard.pid).unwrap().kill().unwrap();
    wait_until("the programs of a killed guard run on", || programs.iter().all(|program| !program.is_alive()));
    lab.remove("busy");
    lab.plant("busy", &[]).unwrap();
    let (guard, programs) = (lab.guard(), children(lab.guard()));
    Pidfd::open(lab.holder().pid).unwrap().kill().unwrap();
    let all_ended = || !guard.is_alive() && programs.iter().all(|program| !program.is_alive());
    wait_until("the guard of a lab that is gone runs on", all_ended);
    undo_stale(&lab.state).unwrap();
    assert!(lab.planted().is_empty(), "its file is gone too");
}

#[test]
fn a_guard_whose_starter_is_gone_before_it_kept_the_undo_ends_without_a_program() {
    let Some(lab) = UpLab::up("early") else { return };
    let holder = lab.holder();
    let order = format!(
        r#"{{"holder":{{"pid":{},"start_ticks":{}}},"command":["sleep","60"],"n_copies":1,"core":null}}"#,
        holder.pid, holder.start_ticks
    );
    let mut guard = in_role("role_of_the_guard");
    let output = guard.arg(order).stdin(Stdio::null()).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("guard:"), "{output:?}");
}

#[test]
fn programs_that_start_on_a_confined_host_get_few_descriptors_and_later_ones_do_not() {
    let Some(lab) = UpLab::up("confined") else { return };
    let before = lab.on_b("ulimit -n; ulimit -Hn");
    lab.plant("descriptors", &["count=40"]).unwrap();
    assert_eq!(lab.on_b("ulimit -n; ulimit -Hn"), "40\n40");
    assert_eq!(lab.on_b("ulimit -Hn 41 2>/dev/null; ulimit -Hn"), "40", "not even root raises it again");
    lab.remove("descriptors");
    assert_eq!(lab.on_b("ulimit -n; ulimit -Hn"), before);
    assert!(matches!(lab.plant("descriptors", &["count=3"]), Err(Error::BadFault { .. })));
}

#[test]
fn a_program_on_a_host_with_one_core_cannot_give_itself_another() {
    let Some(lab) = UpLab::up("pinned") else { return };
    let shown = "taskset -cp 0,1 $$ >/dev/null 2>&1; grep Cpus_allowed_list /proc/self/status";
    let before = lab.on_b(shown);
    let Some(folder) = group_of(&lab, "pinned", &["core=0"]) else { return };
    assert_eq!(lab.on_b(shown), "Cpus_allowed_list:\t0");
    lab.remove("pinned");
    assert_eq!((lab.on_b(shown), folder.exists()), (before, false));
    assert!(lab.plant("pinned", &["core=1023"]).is_err() && lab.planted().is_empty(), "there is no such core");
    assert!(!folder.exists(), "nothing is left of a failure");
}

#[test]
fn a_fault_may_be_on_both_hosts_once_and_is_removed_from_both() {
    let Some(lab) = UpLab::up("both") else { return };
    lab.plant_on("a", "descriptors", &[]).unwrap();
    lab.plant_on("b", "descriptors", &[]).unwrap();
    assert!(matches!(lab.plant_on("b", "descriptors", &[]), Err(Error::BadFault { .. })), "it is there already");
    assert!(matches!(lab.plant_on("c", "descriptors", &[]), Err(Error::UnknownHost { .. })));
    let hosts: Vec<String> = lab.planted().iter().map(|planted| planted.host.to_string()).collect();
    assert_eq!(hosts, ["a", "b"]);
    lab.remove("descriptors");
    assert!(lab.planted().is_empty());
}

#[test]
fn a_setting_of_the_machine_is_planted_once_and_put_back_with_the_fault_or_the_lab() {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_mem";
    if fathom_testkit::lacks_privileges(fs::File::options().write(true).open(SETTING).is_ok()) {
        return;
    }
    let Some(lab) = UpLab::up("machine") else { return };
    let setting = || fs::read_to_string(SETTING).unwrap();
    let before = setting();
    // Far more than this machine's tests use together: nobody notices.
    lab.plant("tcp-memory", &["pages=3000000"]).unwrap();
    assert_eq!(setting().split_whitespace().collect::<Vec<_>>(), ["3000000", "3000000", "4000000"]);
    let refused = lab.plant_on("a", "tcp-memory", &[]).unwrap_err();
    assert!(matches!(&refused, Error::BadFault { why, .. } if why.contains("on b")), "{refused}");
    lab.remove("tcp-memory");
    assert_eq!(setting(), before);
    lab.plant("tcp-memory", &["pages=3000000"]).unwrap();
    drop(lab);
    assert_eq!(setting(), before);
}

#[test]
fn a_neighbor_entry_that_alternates_is_not_left_wrong() {
    let Some(lab) = UpLab::up("neighbor") else { return };
    let mac = || lab.on_b("ip neigh | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'");
    lab.plant("neighbor-flap", &["right=0.01", "wrong=60"]).unwrap();
    wait_until("the entry is wrong", || mac() == "02:00:00:00:00:99");
    lab.remove("neighbor-flap");
    assert_ne!(mac(), "02:00:00:00:00:99");
    // There is nothing to undo while the entry is deleted.
    lab.plant("neighbor-flap", &["right=60"]).unwrap();
    wait_until("the entry is deleted", || mac().is_empty());
    lab.remove("neighbor-flap");
    assert!(lab.planted().is_empty());
}

#[test]
fn a_short_queue_of_a_core_is_undone_with_its_two_settings() {
    const SETTING: &str = "/proc/sys/net/core/netdev_max_backlog";
    if fathom_testkit::lacks_privileges(fs::File::options().write(true).open(SETTING).is_ok()) {
        return;
    }
    let Some(lab) = UpLab::up("queue") else { return };
    let cores = || {
        lab.on_b("unshare --mount sh -c 'mount -t sysfs none /sys; cat /sys/class/net/*/queues/rx-0/rps_cpus' | tr '\\n' ' '")
    };
    let setting = || fs::read_to_string(SETTING).unwrap();
    let (cores_before, setting_before) = (cores(), setting());
    // Longer than usual, which harms nobody. The setting follows another step, whose undo is on disk by then.
    lab.plant("backlog", &["core=0", "packets=1001"]).unwrap();
    assert_eq!(setting().trim(), "1001");
    assert!(cores().contains('1'), "{}", cores());
    lab.remove("backlog");
    assert_eq!((cores(), setting()), (cores_before, setting_before));
    assert!(lab.plant("backlog", &["core=4095"]).is_err());
    assert!(lab.plant("conntrack", &["entries=0"]).is_err(), "it would be no limit");
    assert!(lab.planted().is_empty(), "nothing is left of a failure");
}

/// Plants a fault, and returns the folder of its group; `None`, and reports it, where no group can be made.
fn group_of(lab: &UpLab, fault: &str, values: &[&str]) -> Option<PathBuf> {
    if let Err(error) = lab.plant(fault, values) {
        assert!(lab.planted().is_empty(), "nothing is left of a failure");
        fathom_testkit::skip_everywhere(&format!("control groups cannot be made here: {error}"));
        return None;
    }
    let [Entry::ControlGroup(folder), ..] = &lab.planted()[0].left[..] else { panic!("{:?}", lab.planted()) };
    Some(folder.clone())
}

#[test]
fn a_greedy_program_is_killed_in_the_group_of_its_host_and_both_end_with_the_fault() {
    let Some(lab) = UpLab::up("greedy") else { return };
    let Some(folder) = group_of(&lab, "memory", &["mebibytes=32"]) else { return };
    let [_, Entry::Process(guard)] = lab.planted()[0].left[..] else { panic!("{:?}", lab.planted()) };
    let n_killed = || {
        let files = ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(folder.join(file)));
        let text = files.into_iter().find_map(Result::ok).unwrap();
        let of = |line: &str| line.strip_prefix("oom_kill ")?.parse::<u64>().ok();
        text.lines().find_map(of).unwrap()
    };
    wait_until("nothing is killed again", || n_killed() >= 2);
    assert!(guard.is_alive(), "the guard is small");
    let name = folder.file_name().unwrap().to_str().unwrap();
    assert!(lab.on_b("cat /proc/self/cgroup").contains(name));
    lab.remove("memory");
    assert!(!folder.exists() && !guard.is_alive());
    let refused = lab.plant("memory", &["mebibytes=8"]).unwrap_err();
    assert!(matches!(refused, Error::BadFault { .. }) && lab.planted().is_empty(), "{refused}");
}

#[test]
fn a_quota_holds_for_what_starts_on_the_host_and_its_group_is_gone_with_it() {
    let Some(lab) = UpLab::up("quota") else { return };
    let Some(folder) = group_of(&lab, "quota", &["cores=0.5"]) else { return };
    let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let groups = || lab.on_b("cat /proc/self/cgroup");
    assert!(groups().contains(&name), "{}", groups());
    let limit = |file| fs::read_to_string(folder.join(file));
    let told = limit("cpu.cfs_quota_us").or_else(|_| limit("cpu.max")).unwrap();
    assert!(told.starts_with("50000"), "{told}");
    // A program that still runs does not keep the group.
    let mut program = Command::new("sleep");
    program.arg("60").stdin(Stdio::null());
    let lab_now = Lab::find(&lab.state, &lab.name).unwrap();
    let mut sleeper = lab_now.host("b").unwrap().start(program).unwrap();
    lab.remove("quota");
    assert!(!folder.exists() && !groups().contains(&name));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn a_control_group_ends_with_its_lab_whether_that_is_taken_down_or_its_holder_is_killed() {
    let Some(lab) = UpLab::up("group") else { return };
    let Some(folder) = group_of(&lab, "quota", &["cores=0.5"]) else { return };
    down(&lab.state, &lab.name).unwrap();
    assert!(!folder.exists(), "taken down");
    lab.up_again();
    let Some(folder) = group_of(&lab, "quota", &["cores=0.5"]) else { return };
    let holder = lab.holder();
    Pidfd::open(holder.pid).unwrap().send(fathom_sys::process::signal::Signal::Terminate).unwrap();
    wait_until("the holder undoes it at its end", || !folder.exists());
    wait_until("the holder ends", || !holder.is_alive());
    lab.up_again();
    let Some(folder) = group_of(&lab, "quota", &["cores=0.5"]) else { return };
    let holder = lab.holder();
    Pidfd::open(holder.pid).unwrap().kill().unwrap();
    wait_until("the holder ends", || !holder.is_alive());
    undo_stale(&lab.state).unwrap();
    assert!(!folder.exists() && lab.planted().is_empty(), "killed");
}
