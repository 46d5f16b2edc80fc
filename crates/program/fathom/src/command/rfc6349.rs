//! `fathom tcp --test rfc6349`: measures the path, then tests window sizes around its bandwidth-delay product.

use clap::ArgMatches;
use fathom_model::{
    Finding, OptionDoc, Plan, Record, Run, Settings, Severity, TestPlan, TrialTimes,
    names::{count, tcp},
    units::{BitsPerSec, Bytes, Nanos, approximate, rounded},
};

use super::measurement::{self, KeepResult, TestHosts};
use fathom_run::{
    exit::{Exit, UserError},
    registry,
};

/// The kinds of a window sweep, up and down, with the kinds that fill the path in the same direction.
const KINDS_BY_DIRECTION: [(&str, &str); 2] = [("tcp_rfc6349", "tcp_stream"), ("tcp_rfc6349_down", "tcp_stream_down")];
/// The required facts about the path, as options of the kind.
const BANDWIDTH: &str = "bandwidth";
const BASELINE: &str = "baseline-rtt";
const WINDOW: &str = "buffer";
const FLOWS: &str = "flows";
/// The test that fills the path.
const BANDWIDTH_TEST: &str = "bottleneck bandwidth";
/// The window sizes in percent of the bandwidth-delay product: below it, equal to it, and one that must build a queue.
const WINDOW_PERCENTAGES: [u64; 5] = [25, 50, 75, 100, 150];
/// Below this size, the kernel grants no receive buffer (`SOCK_MIN_RCVBUF`), and the window does not even hold two segments.
const WINDOW_MIN: u64 = 4096;
/// The number of flows that fill a path even if one flow cannot.
const FILL_FLOWS: &str = "8";
/// Long enough for streams to reach their rate, but short compared with the sweep.
const TIMES: TrialTimes = TrialTimes { warmup: Nanos::from_secs(1), duration: Nanos::from_secs(3) };
/// The number of rounds that a confidence interval needs. Each round tests five windows.
pub(super) const ROUNDS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
struct PathProperties {
    /// The bandwidth, counted in IP packets.
    bandwidth: BitsPerSec,
    /// The shortest round trip of the idle path.
    baseline: Nanos,
}

impl PathProperties {
    /// Returns the bytes in flight when the path is full and there is no queue.
    fn bandwidth_delay_product(self) -> Bytes {
        Bytes(rounded(self.bandwidth.get() / 8.0 * self.baseline.as_secs_f64()))
    }
}

/// The input of a window sweep.
pub(super) struct WindowSweep<'a> {
    /// The kind of its tests.
    pub(super) kind: &'static str,
    pub(super) matches: &'a ArgMatches,
    /// The options of the kind that were given.
    pub(super) given: Settings,
    pub(super) ends: TestHosts,
    /// The times of each round.
    pub(super) times: TrialTimes,
}

/// Returns true if the command line requests a sweep and not a single window.
pub(super) fn is_sweep(kind: &str, given: &Settings, matches: &ArgMatches) -> bool {
    let is_scan = matches.try_contains_id("scan").unwrap_or(false);
    KINDS_BY_DIRECTION.iter().any(|(walk, _)| *walk == kind) && given.text(WINDOW).is_none() && !is_scan
}

impl WindowSweep<'_> {
    /// Measures the unknown properties of the path, then runs the sweep.
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let matches = self.matches;
        // Errors in options are reported before anything is measured.
        let options = registry::kind(self.kind)?.options();
        self.given.complete(options).map_err(|error| UserError::new(Exit::Usage, error.to_string()))?;
        let (bandwidth, baseline) = (self.given.bit_rate(BANDWIDTH), self.given.span(BASELINE));
        let path = match (bandwidth, baseline) {
            (Some(bandwidth), Some(baseline)) => PathProperties { bandwidth, baseline },
            _ if matches.get_flag("plan") => {
                return Err(UserError::new(Exit::Usage, "the windows follow from the path, which is measured first")
                    .with_line("use", "--plan --bandwidth 100Mbit --baseline-rtt 40ms")
                    .into());
            }
            _ => match self.measure_path()? {
                Ok(run) => path_from_run(&run, bandwidth, baseline)?,
                Err(exit) => return Ok(exit),
            },
        };
        let mut tests = self.windows(path)?;
        measurement::add_promises(&mut tests, matches)?;
        let title = format!(
            "TCP throughput by RFC 6349, {} × {} = {}",
            path.bandwidth,
            path.baseline,
            path.bandwidth_delay_product()
        );
        measurement::run_and_report(
            measurement::plan(title, ROUNDS, self.ends, tests, matches),
            matches,
            KeepResult::IfRequested,
        )
    }

    /// Returns the kind of streams that fill the path in the direction of the sweep.
    fn fill_kind(&self) -> &'static str {
        KINDS_BY_DIRECTION.iter().find(|(walk, _)| *walk == self.kind).expect("a walk is of one of these kinds").1
    }

    /// Measures the unknown properties of the path. Returns an exit code if it was interrupted.
    fn measure_path(&self) -> anyhow::Result<Result<Run, Exit>> {
        let mut tests = Vec::new();
        if self.given.span(BASELINE).is_none() {
            tests.push(self.test("baseline RTT", "tcp_rr", TIMES)?);
        }
        if self.given.bit_rate(BANDWIDTH).is_none() {
            let mut filling = self.test(BANDWIDTH_TEST, self.fill_kind(), TIMES)?;
            filling.options.set(FLOWS, FILL_FLOWS);
            tests.push(filling);
        }
        let plan = measurement::plan("the path".to_owned(), 1, self.ends.clone(), tests, self.matches);
        let plan = Plan { rounds: 1, until_ci: None, ..plan };
        let executed = measurement::run_unreported(plan, self.matches)?;
        Ok(executed.signal.map_or(Ok(executed.run), |signal| Err(Exit::Signalled(signal))))
    }

    /// Creates a test with those given options that its kind has.
    fn test(&self, name: &str, kind: &str, times: TrialTimes) -> anyhow::Result<TestPlan> {
        let knows = |option: &&OptionDoc| self.given.text(option.name).is_some() && option.name != FLOWS;
        let known = registry::kind(kind)?.options().iter().filter(knows);
        let given = |settings: Settings, option: &OptionDoc| {
            let text = self.given.text(option.name).unwrap_or_default();
            settings.with(option.name, text)
        };
        Ok(TestPlan {
            name: name.to_owned(),
            to: Some(self.ends.to().to_owned()),
            options: known.fold(Settings::default(), given),
            ..TestPlan::new(kind, times, self.ends.from())
        })
    }

    /// Returns a test for each window that the kernel can grant.
    fn windows(&self, path: PathProperties) -> anyhow::Result<Vec<TestPlan>> {
        let flows = self.given.count(FLOWS).unwrap_or(1);
        let window =
            |percent: &u64| (*percent, path.bandwidth_delay_product().0.saturating_mul(*percent) / 100 / flows);
        let possible: Vec<_> =
            WINDOW_PERCENTAGES.iter().map(window).filter(|(_, bytes)| *bytes >= WINDOW_MIN).collect();
        if possible.len() < 2 {
            let what =
                format!("{} are too little under way to be divided into windows", path.bandwidth_delay_product());
            return Err(UserError::new(Exit::Preflight, what)
                .with_line(
                    "why",
                    format!(
                        "the path holds {} × {}, and a window is at least {WINDOW_MIN} bytes",
                        path.bandwidth, path.baseline
                    ),
                )
                .with_line(
                    "try",
                    format!(
                        "{} --test stream        # on so short a path any window is large enough",
                        measurement::command_line()
                    ),
                )
                .into());
        }
        let test = |(percent, bytes): (u64, u64)| {
            let mut test = self.test(&format!("window-{percent}"), self.kind, self.times)?;
            test.options.set(FLOWS, flows.to_string());
            test.options.set(WINDOW, Bytes(bytes).exact());
            test.options.set(BANDWIDTH, path.bandwidth.exact());
            test.options.set(BASELINE, path.baseline.exact());
            Ok(test)
        };
        possible.into_iter().map(test).collect()
    }
}

/// Returns the properties of the path: those of the command line, and the others from the tests before the sweep.
fn path_from_run(
    run: &Run,
    bandwidth: Option<BitsPerSec>,
    baseline: Option<Nanos>,
) -> Result<PathProperties, UserError> {
    let unknown = |what: &str| {
        let notes = run.tests.iter().flat_map(|test| test.unavailable.iter().cloned());
        let errors = records(run).flat_map(|record| record.errors.keys().map(ToString::to_string));
        let why = notes.chain(errors).next().unwrap_or_else(|| "nothing was recorded".to_owned());
        UserError::new(Exit::Preflight, format!("the {what} of the path could not be measured")).with_line("why", why)
    };
    let path = PathProperties {
        bandwidth: bandwidth.or_else(|| total_rate(run)).ok_or_else(|| unknown("bottleneck bandwidth"))?,
        baseline: baseline.or_else(|| rtt_min(run)).ok_or_else(|| unknown("baseline round-trip time"))?,
    };
    let mean = records(run).filter(|record| record.totals.contains_key(count::TRANSACTIONS));
    let mean = mean.filter_map(|record| record.distributions.get(tcp::RTT_NS)?.mean()).map(rounded).next();
    let mean = mean.map_or_else(String::new, |mean| format!(" at least, {} on average", Nanos(mean)));
    let mtu = samples(run, tcp::PMTU_BYTES).min().map_or_else(String::new, |mtu| format!(" · path MTU {mtu} B"));
    eprintln!(
        "path    RTT {}{mean} · {}{mtu} · {} under way",
        path.baseline,
        path.bandwidth,
        path.bandwidth_delay_product()
    );
    if let Some(cause) = held_back_by(run).filter(|_| bandwidth.is_none()) {
        eprintln!("        the streams that found the bandwidth were held back: {cause}");
        eprintln!("        if the path carries more, give its bandwidth: --bandwidth RATE");
    }
    Ok(path)
}

/// Returns what held back the streams that were to fill the path, other than the path itself.
fn held_back_by(run: &Run) -> Option<&str> {
    const OF_PATH: [&str; 3] = ["path-full", "local-shaper", "link-full"];
    let is_cause = |finding: &&Finding| {
        let is_of_test = finding.tests.iter().any(|test| test == BANDWIDTH_TEST);
        is_of_test && matches!(finding.severity, Severity::HoldsBack | Severity::Invalidates)
    };
    let first = run.findings.iter().find(is_cause)?;
    let is_of_path = OF_PATH.contains(&first.id.as_str()) || first.id.starts_with("device-");
    (!is_of_path).then_some(first.title.as_str())
}

fn records(run: &Run) -> impl Iterator<Item = &Record> {
    run.tests.iter().flat_map(|test| &test.trials).flat_map(|trial| trial.records.values())
}

/// Returns the values of one `TCP_INFO` field in all samples of all flows.
fn samples<'a>(run: &'a Run, name: &'a str) -> impl Iterator<Item = u64> + 'a {
    let flows = records(run).flat_map(|record| &record.flows);
    flows.flat_map(|flow| &flow.samples).filter_map(move |sample| sample.values.get(name).copied())
}

/// Returns the shortest round trip that the kernel saw on the connection of the transactions.
fn rtt_min(run: &Run) -> Option<Nanos> {
    let idle = records(run).filter(|record| record.totals.contains_key(count::TRANSACTIONS));
    let flows = idle.flat_map(|record| &record.flows);
    let spans = flows.flat_map(|flow| &flow.samples).filter_map(|sample| sample.values.get(tcp::RTT_MIN_NS).copied());
    spans.filter(|span| *span > 0).min().map(Nanos)
}

/// Returns the rate of all streams together, counted in IP packets.
fn total_rate(run: &Run) -> Option<BitsPerSec> {
    let goodput = run.tests.iter().flat_map(|test| &test.summaries);
    let goodput =
        goodput.filter(|summary| summary.metric.name == "throughput_bps").find_map(|summary| summary.value)?;
    let (mtu, mss) = (samples(run, tcp::PMTU_BYTES).min()?, samples(run, tcp::SND_MSS_BYTES).min()?);
    let of_packets = goodput * approximate(mtu) / approximate(mss.max(1));
    BitsPerSec::new(of_packets.round()).filter(|rate| rate.get() > 0.0)
}
