//! Proves the tests of devices: turns on each defect of the reference balancer, runs the test that is made for it, and compares what fathom
//! says with the defect.
//!
//! Prints a line per case; with `--write`, writes `docs/device-defects.md`; with `--short`, each case runs once; with `--ci`, the debug program
//! that the tests have built runs, by queues alone. A word on the command line selects the cases whose defect, test or data path contains it.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use fathom_model::{CostOutcome, PairedValue, Run, Severity};

use crate::{findings, lab_truth};

/// How often each case runs; a clean device runs more often, because a rare untrue finding needs many runs to show.
const N_RUNS: usize = 5;
const N_CLEAN_RUNS: usize = 10;
/// The same where the data path or the IP version is another one: the tests are the same.
const N_RUNS_BESIDE: usize = 2;
const N_CLEAN_RUNS_BESIDE: usize = 4;
const N_TARGETS: usize = 4;
const PAGE: &str = "docs/device-defects.md";
const INTRODUCTION: &str = "# Defects of a device and what fathom says

`make devices` builds a lab of four targets behind the reference balancer ([balancer.md](balancer.md)), turns on one of its defects, runs the \
test that is made for it and compares the findings with the defect. Clean devices run the same tests. What is true of every lab on a small \
machine by its record, such as a full core, is left out, and so is a full core beside `spread`, which opens connections as fast as it can. Of `path`, what counts is the comparison: `costs-most` is a device that costs more than four fifths of the \
direct rate beyond noise. `memory-grows` is the memory of the device's process (`VmRSS`), which grew by more than 1 MiB while the test ran a second time.

The balancer decides in a process behind packet queues (NFQUEUE) over IPv4. The same defects follow by its program in front of the network stack \
(`path=tc`, `path=xdp`), which leaves to the queues what it cannot do itself, and over IPv6.
";
const HEAD: &str = "| defect | test | expected | found | also said |
|---|---|---|---|---|
";

/// The data path of the balancer and the IP version under which all cases run.
struct Ground {
    title: &'static str,
    /// The value of the device, if it is not the default.
    path: Option<&'static str>,
    preset: &'static str,
    /// The virtual address of the targets.
    virtual_address: &'static str,
    /// The address at which targets listen.
    listen: &'static str,
}

const IPV4: Ground = Ground {
    title: "By packet queues",
    path: None,
    preset: "targets",
    virtual_address: "198.18.8.1",
    listen: "0.0.0.0",
};
const GROUNDS: [Ground; 4] = [
    IPV4,
    Ground { title: "By a program of the traffic control (path=tc)", path: Some("path=tc"), ..IPV4 },
    Ground { title: "By a program of the driver (path=xdp)", path: Some("path=xdp"), ..IPV4 },
    Ground { title: "Over IPv6", path: None, preset: "targets6", virtual_address: "2001:2:0:8::1", listen: "::" },
];

impl Ground {
    fn is_first(&self) -> bool {
        self.title == IPV4.title
    }

    /// Programs do not translate addresses.
    fn has(&self, case: &Case) -> bool {
        self.path.is_none() || !case.defect.contains("mode=dnat")
    }

    fn n_runs(&self, case: &Case) -> usize {
        match (self.is_first(), case.expected) {
            (true, []) => N_CLEAN_RUNS,
            (true, _) => N_RUNS,
            (false, []) => N_CLEAN_RUNS_BESIDE,
            (false, _) => N_RUNS_BESIDE,
        }
    }
}

/// The tests, with what stands before their options.
const SPREAD: &str = "tcp VIP --test spread --connections 4000 --targets t1,t2,t3,t4";
const STAY: &str = "udp VIP --test consistency --flows 200 --rate 2k/s --duration 2s --rounds 1";
const FRAGMENTS: &str = "probe VIP --test fragments --flows 50";
const MANY_FRAGMENTS: &str = "probe VIP --test fragments --datagrams 10";
/// Datagrams to a single target, which needs no server.
const DATAGRAMS: &str = "udp --rate 20M --duration 2s --rounds 2";
/// Bulk TCP through the device and past it.
const BULK: &str = "path tcp --test stream --flows 2 --rounds 4 --duration 4s";
/// Small datagrams, many of them.
const SMALL: &str = "udp --size 64 --rate 8kpps --duration 3s --rounds 1";
/// The same while the device builds its tables anew without any change to them. Its program is PROGRAM.
const CHANGES: &str = "500ms on=dut while :; do PROGRAM balancer targets weight t1 1; done";

/// Flows to all targets that stay open; what an event does to them is told.
const FLOWS: &str = "tcp VIP --test continuity --flows 40 --rate 2k/s --duration 2s --rounds 1";
/// Half of the flows lose everything that they send, although their targets answer others.
const CUTS_FLOWS: &str = "1s on=a nft 'add table inet cut; add chain inet cut out { type filter hook output priority 0; }; \
                          add rule inet cut out tcp sport & 2 == 0 drop'";
/// Two targets whose servers have one name.
const SAME_NAME: &str = "two targets of one name";

/// A defect, the test that is made for it, and the findings that name it: none for a clean device.
struct Case {
    defect: &'static str,
    test: &'static str,
    /// What happens during the test (`--at`).
    event: Option<&'static str>,
    /// Whether the memory of the device is looked at, and nothing else.
    is_soak: bool,
    expected: &'static [&'static str],
}

const fn case(defect: &'static str, test: &'static str, expected: &'static [&'static str]) -> Case {
    Case { defect, test, event: None, is_soak: false, expected }
}

/// A case in which the test runs twice, and the memory of the device grows in the second run.
const fn soak(defect: &'static str, test: &'static str, expected: &'static [&'static str]) -> Case {
    Case { is_soak: true, ..case(defect, test, expected) }
}

/// A clean device, and something that happens during the test.
const fn event(at: &'static str, test: &'static str, expected: &'static [&'static str]) -> Case {
    Case { event: Some(at), ..case("", test, expected) }
}

/// A case in which the tables of the device are built anew all the time.
const fn changing(defect: &'static str, test: &'static str, expected: &'static [&'static str]) -> Case {
    Case { event: Some(CHANGES), ..case(defect, test, expected) }
}

const CASES: &[Case] = &[
    case("ignore-ports", SPREAD, &["targets-missing", "uneven-spread"]),
    case("tiny-table=7", SPREAD, &["uneven-spread"]),
    case("blackhole=t3", SPREAD, &["targets-missing", "an error before the start"]),
    case("copy-range=22", SPREAD, &["nothing-done", "an error before the start"]),
    case("mis-hash=1/100", STAY, &["flows-moved"]),
    case("fragments-without-ports", FRAGMENTS, &["fragments-elsewhere"]),
    case("forget-fragment=1/20", MANY_FRAGMENTS, &["fragments-lost"]),
    case("drop=1/50", DATAGRAMS, &["loss"]),
    case("duplicate=1/50", DATAGRAMS, &["duplicates"]),
    case("reorder=1/50", DATAGRAMS, &["reordering"]),
    case("delay=1/10@5ms", DATAGRAMS, &["reordering"]),
    case("wrong-source,mode=dnat", SPREAD, &["nothing-done", "an error before the start"]),
    changing("in-place-rebuild", DATAGRAMS, &["loss"]),
    case("no-gso", BULK, &["costs-most"]),
    soak("leak=1/1", SMALL, &["memory-grows"]),
    case(SAME_NAME, SPREAD, &["same-target-name"]),
    event("1s stop-target=t2", FLOWS, &["targets-lost-by-event"]),
    event("1s kill-device=dut", FLOWS, &["targets-lost-by-event"]),
    event("1s exit 3", FLOWS, &["event-failed"]),
    event(CUTS_FLOWS, FLOWS, &["collateral-loss"]),
    case("", SPREAD, &[]),
    case("mode=dnat", SPREAD, &[]),
    event("1s true", FLOWS, &[]),
    case("", STAY, &[]),
    case("", FRAGMENTS, &[]),
    case("", DATAGRAMS, &[]),
    changing("", DATAGRAMS, &[]),
    case("", BULK, &[]),
    soak("", SMALL, &[]),
];

/// What the runs of a case said.
#[derive(Default)]
struct Outcome {
    n_runs: usize,
    n_found: usize,
    others: Vec<String>,
}

/// Runs all cases. Returns those whose defect was not found in every run.
pub(super) fn prove(root: &Path) -> anyhow::Result<Vec<String>> {
    let has = |flag: &str| std::env::args().any(|word| word == flag);
    let only = std::env::args().skip(2).find(|word| !word.starts_with("--"));
    let program = findings::program(root, if has("--ci") { "debug" } else { "release" })?;
    let mut page = INTRODUCTION.to_owned();
    let mut faults = Vec::new();
    for ground in GROUNDS.iter().filter(|ground| ground.is_first() || !has("--ci")) {
        write!(page, "\n## {}\n\n{HEAD}", ground.title)?;
        let is_chosen = |case: &&Case| {
            let texts = [case.name(), case.test, ground.title];
            ground.has(case) && only.as_ref().is_none_or(|only| texts.iter().any(|text| text.contains(only.as_str())))
        };
        for case in CASES.iter().filter(is_chosen) {
            let mut outcome = Outcome::default();
            for _ in 0..if has("--short") { 1 } else { ground.n_runs(case) } {
                outcome.add(case, said(&program, ground, case)?);
            }
            println!("{:<26} {:<92} {}", case.name(), case.shown(ground), outcome.text());
            if outcome.n_found < outcome.n_runs {
                faults.push(format!("{}, {}: {}", case.name(), case.shown(ground), outcome.text()));
            }
            writeln!(page, "{}", outcome.row(ground, case))?;
        }
    }
    if has("--write") {
        fs::write(root.join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))?;
        return Ok(Vec::new());
    }
    Ok(faults)
}

impl Case {
    fn name(&self) -> &'static str {
        if self.defect.is_empty() { "none" } else { self.defect }
    }

    /// The name that the server of a target tells.
    fn name_of(&self, n: usize) -> String {
        let n = if self.defect == SAME_NAME { n.min(N_TARGETS - 1) } else { n };
        format!("t{n}")
    }

    /// The test as the page shows it.
    fn shown(&self, ground: &Ground) -> String {
        let about = match self.event {
            Some(CHANGES) => ", while the tables are built anew".to_owned(),
            Some(event) => format!(", `--at \"{}\"`", event.split_whitespace().collect::<Vec<_>>().join(" ")),
            None if self.is_soak => ", twice".to_owned(),
            None => String::new(),
        };
        format!("`{}`{about}", self.test.replace("VIP", ground.virtual_address))
    }
}

impl Outcome {
    fn add(&mut self, case: &Case, said: Vec<String>) {
        self.n_runs += 1;
        let is_expected = |id: &String| case.expected.contains(&id.as_str());
        let is_found = if case.expected.is_empty() { said.is_empty() } else { said.iter().any(is_expected) };
        self.n_found += usize::from(is_found);
        for other in said.into_iter().filter(|id| !is_expected(id)) {
            if !self.others.contains(&other) {
                self.others.push(other);
            }
        }
    }

    fn text(&self) -> String {
        let others = if self.others.is_empty() { String::new() } else { format!(", also {}", self.others.join(", ")) };
        format!("{} of {}{others}", self.n_found, self.n_runs)
    }

    fn row(&self, ground: &Ground, case: &Case) -> String {
        let expected = if case.expected.is_empty() { "nothing".to_owned() } else { case.expected.join(" or ") };
        let Self { n_runs, n_found, others } = self;
        format!(
            "| {} | {} | {expected} | {n_found} of {n_runs} | {} |",
            case.name(),
            case.shown(ground),
            others.join(", ")
        )
    }
}

/// Turns on the defect of a case, runs its test, and returns the findings above a remark that are not true of every lab.
fn said(program: &Path, ground: &Ground, case: &Case) -> anyhow::Result<Vec<String>> {
    let of_case = match case.defect {
        "" | SAME_NAME => None,
        mode if mode.starts_with("mode=") => Some(mode.to_owned()),
        defect => Some(format!("defect={defect}")),
    };
    let values: Vec<String> = ground.path.map(str::to_owned).into_iter().chain(of_case).collect();
    let device = if values.is_empty() { "balancer".to_owned() } else { format!("balancer:{}", values.join(",")) };
    let has_targets = case.test.contains("VIP");
    let preset = format!("{}:{}", ground.preset, if has_targets { N_TARGETS } else { 1 });
    let lab = DeviceLab::up(program, &preset, &device)?;
    let servers: Vec<Server> = if has_targets {
        (1..=N_TARGETS).map(|n| lab.serve(ground, n, &case.name_of(n))).collect::<Result<_, _>>()?
    } else {
        Vec::new()
    };
    if case.is_soak {
        return soaked(&lab, case.test);
    }
    let event = case.event.map(|event| event.replace("PROGRAM", &program.to_string_lossy()));
    let output = Command::new(program)
        .args(case.test.replace("VIP", ground.virtual_address).split(' '))
        .args(["--lab", &lab.name, "--json"])
        .args(event.iter().flat_map(|event| ["--at", event.as_str()]))
        .stdin(Stdio::null())
        .output()?;
    drop(servers);
    let Ok(run) = serde_json::from_slice::<Run>(&output.stdout) else {
        return Ok(vec!["an error before the start".to_owned()]);
    };
    if case.test == BULK {
        return Ok(if costs_most(&run) { vec!["costs-most".to_owned()] } else { Vec::new() });
    }
    let above = run.findings.iter().filter(|finding| finding.severity > Severity::Remark).map(|finding| &finding.id);
    // Connections are opened as fast as they can be.
    let is_of_test = |id: &String| case.test == SPREAD && ["core-saturated", "device-core-full"].contains(&id.as_str());
    Ok(above.filter(|id| !lab_truth::is_true_of_lab(&run, id) && !is_of_test(id)).cloned().collect())
}

/// Whether a path has less than a fifth of the throughput of the direct one, beyond noise. A device in good order has 0.4 to 0.6 of it by two
/// cores, and without segments that stay whole 0.03.
fn costs_most(run: &Run) -> bool {
    let arms = run.comparisons.iter().flat_map(|comparison| &comparison.arms).filter(|arm| !arm.is_null);
    let rates = arms.flat_map(|arm| &arm.values).filter(|value| value.metric == "throughput_bps");
    let is_less = |value: &PairedValue| value.ratio.is_some_and(|ratio| ratio.value < 0.2);
    rates.into_iter().any(|value| value.outcome == CostOutcome::Costs && is_less(value))
}

/// A device that forwards some ten thousand packets needs no more memory afterwards; one that keeps 256 bytes of each needs several MiB.
const GROWTH_MAX_KIB: u64 = 1024;

/// Runs a test twice, and tells whether the memory of the device grew in the second run.
fn soaked(lab: &DeviceLab<'_>, test: &str) -> anyhow::Result<Vec<String>> {
    let run = || {
        let output = Command::new(lab.program)
            .args(test.split(' '))
            .args(["--lab", &lab.name, "--json"])
            .stdin(Stdio::null())
            .output()?;
        serde_json::from_slice::<Run>(&output.stdout).context("the test gave no result")
    };
    run()?;
    let before = lab.device_memory_kib()?;
    run()?;
    let growth = lab.device_memory_kib()?.saturating_sub(before);
    Ok(if growth > GROWTH_MAX_KIB { vec!["memory-grows".to_owned()] } else { Vec::new() })
}

/// A lab with a device; taken down when dropped.
struct DeviceLab<'a> {
    program: &'a Path,
    name: String,
}

impl<'a> DeviceLab<'a> {
    fn up(program: &'a Path, preset: &str, device: &str) -> anyhow::Result<Self> {
        let name = format!("devices-{}", std::process::id());
        let words = ["lab", "up", preset, "--name", &name, "--device", device, "--for", "5m"];
        let output = Command::new(program).args(words).stdin(Stdio::null()).output()?;
        anyhow::ensure!(output.status.success(), "{device}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { program, name })
    }

    /// The resident memory of the balancer, in KiB.
    fn device_memory_kib(&self) -> anyhow::Result<u64> {
        let output = Command::new(self.program)
            .args(["lab", "exec", &self.name, "dut", "--"])
            .arg(self.program)
            .args(["balancer", "counters", "--json"])
            .stdin(Stdio::null())
            .output()?;
        let counters: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("the balancer has no counters")?;
        let status = fs::read_to_string(format!("/proc/{}/status", counters["pid"]))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()).context("its memory is not told")?;
        Ok(number.parse()?)
    }

    /// Starts the server that tells who it is, on a target.
    fn serve(&self, ground: &Ground, n: usize, name: &str) -> anyhow::Result<Server> {
        let target = format!("t{n}");
        let mut child = Command::new(self.program)
            .args(["lab", "exec", &self.name, &target, "--"])
            .arg(self.program)
            .args(["serve", "--listen", ground.listen, "--only", "identity", "--identity-name", name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let told = BufReader::new(child.stdout.take().context("its output is piped")?);
        let server = Server(child);
        let is_ready = told.lines().map_while(Result::ok).any(|line| line.contains("identity"));
        anyhow::ensure!(is_ready, "the server of {target} ended");
        Ok(server)
    }
}

impl Drop for DeviceLab<'_> {
    fn drop(&mut self) {
        let _ = Command::new(self.program).args(["lab", "down", &self.name]).stdin(Stdio::null()).output();
    }
}

/// A server on a target; ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
