//! Proves the findings: plants each fault of `fathom lab fault` in a lab, measures, and compares what fathom says with what was planted.
//!
//! Writes `docs/findings.md` with `--write`, with the pairs of [`fault_pairs`]. With `--short`, each case runs once; a fault that is not named
//! first is a failure. With `--seed N`, place, strength and direction of the faults are drawn ([`fault_variants`]); with `--pairs`, only
//! pairs are planted.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    fault_case::{Case, PlantedFault},
    fault_pairs,
    fault_variants::{self, fault},
};

/// A fault of this machine: fathom may use 30 % of a core.
const QUOTA: &str = "cpu quota of 0.3 cores";
/// A fault of this machine: other programs use its cores.
const BUSY: &str = "other programs";
/// How often each case runs for the table.
const N_RUNS: usize = 5;

/// The fields of a case.
type CaseRow = (&'static [&'static str], &'static str, &'static str, &'static [&'static str]);

const CASES: &[CaseRow] = &[
    (&["shaper"], "a", "tcp", &["local-shaper"]),
    (&["shaper", "rate=400mbit"], "a", "tcp --flows 4", &["local-shaper"]),
    (&["shaper", "rate=20mbit"], "b", "tcp --test down", &["local-shaper"]),
    (&["shaper", "rate=50mbit"], "a", "udp --rate 100M", &["local-shaper"]),
    (&["shaper", "rate=50mbit"], "b", "http --connections 20", &["local-shaper"]),
    (&["htb", "rate=80mbit"], "a", "tcp", &["local-shaper"]),
    (&["policer"], "b", "udp --rate 100M", &["rate-limit"]),
    (&["policer", "rate=2000"], "b", "udp --rate 40M", &["rate-limit"]),
    (&["policer"], "b", "tcp", &["retransmissions"]),
    (&["loss"], "b", "tcp", &["retransmissions"]),
    (&["loss", "permille=10"], "b", "udp --rate 50M", &["loss"]),
    (&["loss", "permille=100"], "a", "udp --test down --rate 50M", &["loss"]),
    (&["firewall"], "b", "tcp", &["filter-drops"]),
    (&["firewall", "permille=50"], "b", "udp --rate 50M", &["filter-drops"]),
    (&["closed-port"], "b", "udp --rate 10M", &["no-listener"]),
    (&["mtu-hole"], "b", "tcp", &["path-mtu-black-hole"]),
    (&["mtu-hole"], "b", "udp --rate 10M --size 1450B", &["path-mtu-black-hole"]),
    (&["reverse-path"], "b", "udp --rate 10M", &["reverse-path-filter"]),
    (&["no-route"], "a", "tcp", &["no-route", PREFLIGHT]),
    (&["link-down"], "b", "udp --rate 10M", &["nothing-done", "link-down"]),
    (&["receive-window"], "b", "tcp", &["receive-window"]),
    (&["send-buffer"], "a", "tcp", &["send-buffer"]),
    (&["listen-queue"], "b", "tcp --test crr --flows 200", &["connect-delays"]),
    (&["ports"], "a", "http --connections 200", &["ports"]),
    (&["syn-loss"], "b", "tcp --test crr --flows 50", &["connect-delays"]),
    (&["resets"], "b", "tcp", &["resets"]),
    (&["resets"], "b", "http --connections 50", &["resets"]),
    (&["small buffer"], "", "udp --rate 200M --buffer 4096", &["udp-receive-buffer"]),
    (&[QUOTA], "", "tcp", &["cpu-quota"]),
    (&[BUSY], "", "tcp", &["other-programs"]),
    (&["impair:loss=2%"], "", "udp --rate 50M", &["loss"]),
    (&["impair:loss=2%"], "", "tcp", &["retransmissions"]),
    (&["impair:loss=5%,burst=20"], "", "udp --rate 50M", &["loss"]),
    (&["impair:rate=50Mbit"], "", "udp --rate 80M", &["rate-limit"]),
    (&["impair:rate=50Mbit"], "", "tcp", &["path-full"]),
    (&["impair:rate=20Mbit,queue=500"], "", "tcp --test loaded", &["latency-under-load"]),
    (&["impair:outage=500ms"], "", "udp --rate 20M", &["outage"]),
    (&["impair:delay=20ms,loss=0.1%"], "", "tcp", &["congestion-window", "retransmissions"]),
    (&["impair:corrupt=1%"], "", "udp --rate 50M", &["bad-checksums"]),
    (&["impair:corrupt=2%"], "", "tcp", &["bad-tcp-checksums"]),
    (&["impair:reorder=2%"], "", "udp --rate 50M", &["reordering"]),
    (&["impair:duplicate=2%"], "", "udp --rate 50M", &["duplicates"]),
    (&["impair:mtu=1400"], "", "tcp", &["path-mtu-black-hole"]),
    (&["impair:mtu=1400"], "", "udp --rate 10M --size 1450B", &["path-mtu-black-hole"]),
    (&["slow server: 20 ms"], "", "http --connections 10 --delay 20ms", &["server-time"]),
    (&["stalling server: 300 ms in a second"], "", "http --connections 10 --stall 300ms/1s", &["stall"]),
    (&["impair"], "", "udp --rate 20M", &[]),
    (&["impair:delay=10ms"], "", "tcp --test rr", &[]),
    (&[], "", "tcp --rate 1G", &[]),
    (&[], "", "udp --rate 100M", &[]),
    (&[], "", "tcp --test rr", &[]),
    (&[], "", "http --connections 10 --rate 5000", &[]),
];

/// What stands for an error before the start, such as a missing route.
const PREFLIGHT: &str = "an error before the start";

/// Findings that are true of every lab on a machine with few cores, which both ends share with other programs.
const OF_THIS_MACHINE: [&str; 4] = ["core-saturated", "generator-limited", "steal", "other-programs"];
/// The state of a test without a result, which its cause leads.
const NOTHING_DONE: &str = "nothing-done";

/// What the runs of a case said.
#[derive(Default)]
struct Outcome {
    n_runs: usize,
    n_first: usize,
    n_found: usize,
    /// Other findings above a remark.
    others: Vec<String>,
}

/// Runs all cases. Returns the cases whose fault was not named first, as faults of the short form.
pub(super) fn prove(root: &Path) -> anyhow::Result<Vec<String>> {
    let has = |flag: &str| std::env::args().any(|word| word == flag);
    let only = std::env::args().skip(2).find(|word| !word.starts_with("--") && word.parse::<u64>().is_err());
    let n_runs = if has("--short") { 1 } else { N_RUNS };
    let program = program(root)?;
    let busy = if has("--busy") { BusyPrograms::start(2)? } else { BusyPrograms(Vec::new()) };
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let cases = match option("--seed")? {
        Some(seed) => fault_variants::draw(seed),
        None if has("--pairs") => fault_pairs::all(),
        None => {
            let singles = CASES.iter().map(|(words, host, test, expected)| fault(words, host, test, expected));
            singles.chain(if has("--write") { fault_pairs::all() } else { Vec::new() }).collect()
        }
    };
    for case in cases.iter().filter(|case| only.as_ref().is_none_or(|only| case.name().contains(only.as_str()))) {
        let mut outcome = Outcome::default();
        for _ in 0..n_runs {
            outcome.add(case, &said(&program, case)?);
        }
        println!("{:<28} {:<36} {}", case.name(), case.test, outcome.text());
        if outcome.n_first < outcome.n_runs || outcome.n_found < outcome.n_runs {
            faults.push(format!("{}, {}: {}", case.name(), case.test, outcome.text()));
        }
        rows.push((case, outcome));
    }
    drop(busy);
    if has("--write") {
        fs::write(root.join("docs/findings.md"), page(&rows, n_runs, has("--busy")))
            .context("cannot write docs/findings.md")?;
        return Ok(Vec::new());
    }
    Ok(faults)
}

/// Returns the number behind an option of the command line.
fn option(name: &str) -> anyhow::Result<Option<u64>> {
    let text = std::env::args().skip_while(|word| word != name).nth(1);
    text.map(|text| text.parse().with_context(|| format!("{name} {text}"))).transpose()
}

impl Outcome {
    fn add(&mut self, case: &Case, findings: &[String]) {
        self.n_runs += 1;
        let of_fault: Vec<&String> =
            findings.iter().filter(|id| !OF_THIS_MACHINE.contains(&id.as_str()) || case.expects(id)).collect();
        let is_named = |names: &&[&str]| findings.iter().any(|id| names.contains(&id.as_str()));
        let (is_first, is_found) = match case.expected.as_slice() {
            [] => (of_fault.is_empty(), of_fault.is_empty()),
            expected => (findings.first().is_some_and(|first| case.expects(first)), expected.iter().all(is_named)),
        };
        self.n_first += usize::from(is_first);
        self.n_found += usize::from(is_found);
        let others = of_fault.into_iter().filter(|id| *id != NOTHING_DONE && !case.expects(id));
        for other in others {
            if !self.others.contains(other) {
                self.others.push(other.clone());
            }
        }
    }

    fn text(&self) -> String {
        let others = if self.others.is_empty() { String::new() } else { format!(", also {}", self.others.join(", ")) };
        format!("first {} of {}, found {}{others}", self.n_first, self.n_runs, self.n_found)
    }
}

/// Returns the ids of the findings above a remark, in their order.
fn said(program: &Path, case: &Case) -> anyhow::Result<Vec<String>> {
    let lab = FaultyLab::up(program, case)?;
    let quota = if case.has(QUOTA) { Some(QuotaGroup::make()?) } else { None };
    let busy = if case.has(BUSY) { Some(BusyPrograms::start(thread::available_parallelism()?.get())?) } else { None };
    let mut command = quota.as_ref().map_or_else(|| Command::new(program), |quota| quota.command(program));
    let output = command
        .args(case.test.split(' '))
        .args(["--lab", &lab.name, "--duration", "2s", "--rounds", "2", "--json"])
        .stdin(Stdio::null())
        .output()?;
    drop((quota, busy));
    // A test that could not start has an error with its cause in place of findings.
    let Ok(run) = serde_json::from_slice::<Value>(&output.stdout) else { return Ok(vec![PREFLIGHT.to_owned()]) };
    let findings = run["findings"].as_array().cloned().unwrap_or_default();
    let told = findings.iter().filter(|finding| finding["severity"] != "remark");
    Ok(told.filter_map(|finding| finding["id"].as_str().map(str::to_owned)).collect())
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
        run(program, &[&["lab", "up", "pair", "--name", &name, "--for", "5m"], device.as_slice()].concat())?;
        let lab = Self { program, name };
        for planted in case.faults.iter().filter(|planted| !planted.host.is_empty()) {
            let words: Vec<&str> = planted.words.iter().map(String::as_str).collect();
            run(
                program,
                &[&["lab", "fault", "add", &lab.name], words.as_slice(), &["--host", &planted.host]].concat(),
            )?;
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

/// A control group with a CPU quota; removed when dropped.
struct QuotaGroup(PathBuf);

impl QuotaGroup {
    fn make() -> anyhow::Result<Self> {
        let name = format!("fathom-findings-{}", std::process::id());
        let (first, second) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let is_first = first.join("cpu.shares").exists();
        let group = Self(if is_first { first } else { second }.join(name));
        fs::create_dir(&group.0).context("cannot make a control group")?;
        let (file, value) = if is_first { ("cpu.cfs_quota_us", "30000") } else { ("cpu.max", "30000 100000") };
        fs::write(group.0.join(file), value).context("cannot set the quota of a control group")?;
        Ok(group)
    }

    /// A command that enters the group before it becomes the program.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display());
        command.args(["-c", &enter]).arg(program);
        command
    }
}

impl Drop for QuotaGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Programs that use the cores; ended when dropped.
struct BusyPrograms(Vec<Child>);

impl BusyPrograms {
    fn start(n: usize) -> anyhow::Result<Self> {
        let one = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
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

/// Returns the release build of fathom.
fn program(root: &Path) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = target.join("release/fathom");
    anyhow::ensure!(program.exists(), "{} is missing: cargo build --release", program.display());
    Ok(program)
}

fn page(rows: &[(&Case, Outcome)], n_runs: usize, is_busy: bool) -> String {
    let machine = if is_busy { "beside two programs that use the cores" } else { "on a quiet machine" };
    let mut page = format!(
        "# Planted faults and what fathom says\n\n\
         `make findings` plants each fault in a lab of two hosts (`fathom lab fault add`), runs the test {n_runs} times and compares the \
         findings with the fault. *First* counts the runs in which the fault led the findings, *found* those in which it was named at all; \
         *also said* lists other findings above a remark. \"Both ends share the cores\" is true of every lab on a small machine and is left \
         out. This table was made {machine}. `cargo xtask findings --short --seed N` draws place, strength and direction of the faults.\n\n\
         | fault | test | expected | first | found | also said |\n|---|---|---|---|---|---|\n"
    );
    for (case, outcome) in rows {
        let causes: Vec<String> = case.expected.iter().map(|names| names.join(" or ")).collect();
        let expected = if causes.is_empty() { "nothing".to_owned() } else { causes.join(" and ") };
        let (first, found, others) = (outcome.n_first, outcome.n_found, outcome.others.join(", "));
        let row = format!(
            "| {} | `{}` | {expected} | {first} of {n_runs} | {found} of {n_runs} | {others} |",
            case.name(),
            case.test
        );
        writeln!(page, "{row}").expect("a text takes everything");
    }
    page + &sums(rows)
}

/// The sums of all rows in a sentence each.
fn sums(rows: &[(&Case, Outcome)]) -> String {
    let of = |n_causes: std::ops::RangeInclusive<usize>| {
        let outcomes = rows.iter().filter(move |(case, _)| n_causes.contains(&case.expected.len()));
        outcomes.fold((0, 0, 0), |(runs, first, found), (_, outcome)| {
            (runs + outcome.n_runs, first + outcome.n_first, found + outcome.n_found)
        })
    };
    let ((all, first, _), (clean, quiet, _), (pairs, of_pair, both)) = (of(1..=1), of(0..=0), of(2..=2));
    let mut text = format!(
        "\nNamed first: {first} of {all} runs with a fault. Nothing untrue: {quiet} of {clean} runs without one.\n"
    );
    if pairs > 0 {
        let sentence = format!(
            "Of two faults at once, one was named first in {of_pair} of {pairs} runs, and both were named in {both} of {pairs}.\n"
        );
        text.push_str(&sentence);
    }
    text
}
