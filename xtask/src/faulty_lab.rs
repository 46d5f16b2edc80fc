//! A lab with planted faults, and what fathom says of a test in it.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use fathom_model::{Finding, Run, Severity};

use crate::{
    fault_case::{Case, PREFLIGHT, PlantedFault},
    foreign_servers::{ALONE, ForeignServer},
    lab_truth,
};

/// The scenarios of users who follow a script.
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");

/// Causes that may keep a test from its start, with the words of the error that name them.
const ERRORS: [(&str, &str); 5] = [
    ("link-down", "the interface eth0 of"),
    ("descriptors", "RLIMIT_NOFILE"),
    ("no-route", "No route to host"),
    ("neighbor-unresolved", "no host on the link answers"),
    ("neighbor-changes", "no host on the link answers"),
];

/// Findings that are the result of a search or a benchmark, and no cause.
const RESULTS: [&str; 2] = ["benchmark", "limit"];

/// What a run said, as ids of its findings in their order.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The findings above a remark.
    pub(crate) above_remarks: Vec<String>,
    /// All findings.
    pub(crate) all: Vec<String>,
    /// Those that the record bears out as true of every lab on this machine.
    pub(crate) of_lab: Vec<String>,
}

/// A fault that this machine does not allow: its kernel lacks a feature, or others would be hurt.
#[derive(Debug)]
pub(crate) struct FaultRefused(String);

impl std::fmt::Display for FaultRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the fault is refused here: {}", self.0.trim_end())
    }
}

impl std::error::Error for FaultRefused {}

/// Tells a fault that this machine does not allow from one that is wrong.
fn refused(error: anyhow::Error) -> anyhow::Error {
    let text = error.to_string();
    let is_refused = ["this kernel", "tracks connections already"].iter().any(|words| text.contains(words));
    if is_refused { FaultRefused(text).into() } else { error }
}

/// Plants the faults of a case, runs its test, and returns what it said.
///
/// # Errors
/// [`FaultRefused`] if the machine does not allow one of the faults.
pub(crate) fn said(program: &Path, case: &Case) -> anyhow::Result<Said> {
    let lab = FaultyLab::up(program, case)?;
    let names = case.faults.iter().filter_map(|planted| planted.words.first());
    let servers = names.map(|fault| ForeignServer::start(program, &lab.name, fault));
    let _servers = servers.collect::<anyhow::Result<Vec<Option<ForeignServer>>>>()?;
    let words = shlex::split(&case.test).with_context(|| format!("{}: a quote is not closed", case.test))?;
    let mut command = Command::new(program);
    command.current_dir(SCENARIOS);
    // From within the lab, host a is alone: nobody reads the counters of the server's host.
    if case.test.ends_with(ALONE) {
        command.args(["lab", "exec", &lab.name, "a", "--"]).arg(program).args(words);
    } else {
        command.args(words).args(["--lab", &lab.name]);
    }
    // A test of the path ends by itself, and another end would cut it off. A benchmark has trials of its own.
    if !case.test.starts_with("probe") && !case.test.contains("--method") {
        command.args(["--duration", "2s", "--rounds", "2"]);
    }
    let output = command.arg("--json").stdin(Stdio::null()).output()?;
    // A test that could not start has an error with its cause in place of findings.
    let Ok(run) = serde_json::from_slice::<Run>(&output.stdout) else {
        let error = String::from_utf8_lossy(&output.stderr);
        let named = ERRORS.iter().filter(|(id, words)| case.expects(id) && error.contains(words));
        // One that does not name what was planted is no answer.
        let named: Vec<String> = named.map(|(id, _)| (*id).to_owned()).chain([PREFLIGHT.to_owned()]).take(1).collect();
        return Ok(Said { above_remarks: named.clone(), all: named, of_lab: Vec::new() });
    };
    let ids = |is_wanted: fn(Severity) -> bool| -> Vec<String> {
        let is_wanted = |finding: &&Finding| is_wanted(finding.severity) && !RESULTS.contains(&finding.id.as_str());
        run.findings.iter().filter(is_wanted).map(|finding| finding.id.clone()).collect()
    };
    let above_remarks = ids(|severity| severity > Severity::Remark);
    let of_lab = above_remarks.iter().filter(|id| lab_truth::is_true_of_lab(&run, id)).cloned().collect();
    Ok(Said { all: ids(|_| true), of_lab, above_remarks })
}

/// A lab with a fault; taken down when dropped.
struct FaultyLab<'a> {
    program: &'a Path,
    name: String,
}

impl<'a> FaultyLab<'a> {
    fn up(program: &'a Path, case: &Case) -> anyhow::Result<Self> {
        let name = format!("findings-{}", std::process::id());
        let device = case.faults.iter().find_map(PlantedFault::device);
        let device: Vec<&str> = device.into_iter().flat_map(|device| ["--device", device]).collect();
        let wire: &[&str] = if case.has_second_wire() { &["--direct-wire"] } else { &[] };
        let up = ["lab", "up", case.preset(), "--name", &name, "--for", "5m"];
        run(program, &[&up, device.as_slice(), wire].concat())?;
        let lab = Self { program, name };
        for (planted, host) in case.faults.iter().flat_map(|one| one.host.split(' ').map(move |host| (one, host))) {
            let words: Vec<&str> = planted.words.iter().map(String::as_str).collect();
            if let Some(command) = planted.command() {
                run(program, &["lab", "exec", &lab.name, host, "--", "sh", "-c", command])?;
            } else if !host.is_empty() {
                run(program, &[&["lab", "fault", "add", &lab.name], words.as_slice(), &["--host", host]].concat())
                    .map_err(refused)?;
            }
        }
        Ok(lab)
    }
}

impl Drop for FaultyLab<'_> {
    fn drop(&mut self) {
        let _ = run(self.program, &["lab", "down", &self.name]);
    }
}

fn run(program: &Path, words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(words).stdin(Stdio::null()).output()?;
    anyhow::ensure!(output.status.success(), "{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Programs that use the cores; ended when dropped, or by themselves once their parent is gone.
pub(crate) struct BusyPrograms(Vec<Child>);

/// A loop that looks for its parent now and then.
const BUSY_LOOP: &str =
    "while kill -0 $PPID; do n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done; done 2> /dev/null";

impl BusyPrograms {
    pub(crate) fn start(n: usize) -> anyhow::Result<Self> {
        let one = || Command::new("sh").args(["-c", BUSY_LOOP]).spawn();
        Ok(Self((0..n).map(|_| one()).collect::<std::io::Result<_>>()?))
    }
}

impl Drop for BusyPrograms {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
