//! Shared by the drop-in load generators: the plan of one closed loop from this machine, its run, and its record.

use std::{
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use fathom_engine::LiveProgress;
use fathom_model::{
    Plan, Record, Settings, Side, TestPlan, TrialTimes,
    host_port::{port_number, split_host_port},
    plan::HostReach,
    run::Completeness,
    units::{Nanos, approximate},
};
use fathom_report::{Format as _, formats::TextFormat, formats::TextStyle};

use fathom_run::{
    allow::AllowList,
    execute::{self, CheckedPlan, FinishedRun, RunOptions},
    exit::{Exit, UserError},
};

/// The time limit for the first connection. TCP sends its first segment three times within it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints to stdout and flushes, so that the first lines of a result are visible during the run.
pub(super) fn print_now(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The output that a drop-in adds to the tool's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtraOutput {
    /// None: the text is the tool's own.
    None,
    /// `--fathom`: fathom's own report after the text.
    Report,
}

/// Removes fathom's own `--fathom` from a tool's arguments.
pub(super) fn without_extras(words: &[String]) -> (Vec<String>, ExtraOutput) {
    let mut kept = words.to_vec();
    kept.retain(|word| word != "--fathom");
    let extras = if kept.len() < words.len() { ExtraOutput::Report } else { ExtraOutput::None };
    (kept, extras)
}

impl ExtraOutput {
    /// Prints the requested extra output.
    pub(super) fn print(self, measured: &MeasuredLoop) -> anyhow::Result<()> {
        if self == Self::None {
            return Ok(());
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        writeln!(out)?;
        TextFormat(TextStyle::PLAIN).write(&measured.0.run, &mut out)?;
        Ok(out.flush()?)
    }
}

/// The parts of a URL that are needed before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UrlTarget {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) is_secure: bool,
}

impl UrlTarget {
    /// Parses a URL. Returns `None` if it has no scheme and host.
    pub(super) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let (host, port) = split_host_port(authority)?;
        let port = match port {
            Some(port) => Some(port_number(port)?),
            None => None,
        };
        let is_secure = scheme.eq_ignore_ascii_case("https");
        Some(Self { host: host.to_owned(), port, is_secure })
    }

    /// Returns the port as given, or the name of the service.
    pub(super) fn service(&self) -> String {
        self.port.map_or_else(|| if self.is_secure { "https" } else { "http" }.to_owned(), |port| port.to_string())
    }

    /// Returns the port number.
    pub(super) fn number(&self) -> u16 {
        self.port.unwrap_or(if self.is_secure { 443 } else { 80 })
    }
}

/// The reason why a target gets no load.
#[derive(Debug)]
pub(super) enum TargetError {
    /// The user has not allowed the target. This ends the run with exit code 3.
    NotAllowed(UserError),
    /// The name has no address.
    Unknown(String),
    /// No address accepts a connection. Contains the last address that was tried and the error.
    Unreachable(SocketAddr, io::Error),
}

/// Checks that all addresses of a target are allowed, then that one of them accepts a connection.
pub(super) fn check_reachable(target: &UrlTarget, allowed: &AllowList) -> Result<(), TargetError> {
    let found = (target.host.as_str(), target.number()).to_socket_addrs();
    let addresses: Vec<SocketAddr> = found.map_err(|error| TargetError::Unknown(c_error_text(&error)))?.collect();
    let ips: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    allowed.check(&target.host, &ips).map_err(TargetError::NotAllowed)?;
    let mut outcome = Err(TargetError::Unknown("the name has no address".to_owned()));
    for address in &addresses {
        let connected = TcpStream::connect_timeout(address, CONNECT_TIMEOUT).map(drop);
        outcome = connected.map_err(|cause| TargetError::Unreachable(*address, cause));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// Returns the C library's text for an error, as printed by tools written in C.
pub(super) fn c_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns the error for the text in a record, which starts in lower case.
pub(super) fn error_from_text(text: &str) -> Option<io::Error> {
    // The highest error number of Linux (asm-generic/errno.h).
    const ERRNO_MAX: i32 = 133;
    (1..=ERRNO_MAX).map(io::Error::from_raw_os_error).find(|error| c_error_text(error).eq_ignore_ascii_case(text))
}

/// The kind of a closed loop without a script.
pub(super) const CLOSED_LOOP_KIND: &str = "http_closed";

/// A closed loop as requested by a drop-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClosedLoop {
    pub(super) title: String,
    /// The kind of test: `http_closed`, or the kind for scripts.
    pub(super) kind: &'static str,
    /// The options of the kind.
    pub(super) settings: Settings,
    pub(super) duration: Nanos,
}

/// The result of a closed loop.
pub(super) struct MeasuredLoop(pub(super) FinishedRun);

impl ClosedLoop {
    fn plan(&self) -> Plan {
        let here = "this machine".to_owned();
        // None of these tools has a warm-up, so everything counts.
        let times = TrialTimes { warmup: Nanos::ZERO, duration: self.duration };
        let test = TestPlan { options: self.settings.clone(), ..TestPlan::new(self.kind, times, &here) };
        Plan {
            seed: fathom_sys::clock::wall().0 & 0xffff_ffff,
            hosts: [(here, HostReach::This)].into(),
            ..Plan::new(&self.title, vec![test])
        }
    }

    /// Runs the closed loop. `watcher` receives the progress twice a second.
    pub(super) fn measure(
        &self,
        watcher: Option<Box<dyn Fn(LiveProgress)>>,
        allowed: &AllowList,
    ) -> anyhow::Result<MeasuredLoop> {
        MeasuredLoop::watched(self.plan(), watcher, allowed)
    }
}

impl MeasuredLoop {
    /// Runs a plan of a drop-in.
    pub(super) fn of_plan(plan: Plan, allowed: &AllowList) -> anyhow::Result<Self> {
        Self::watched(plan, None, allowed)
    }

    /// Runs a plan of a drop-in. `watcher` receives the progress twice a second.
    pub(super) fn watched(
        plan: Plan,
        watcher: Option<Box<dyn Fn(LiveProgress)>>,
        allowed: &AllowList,
    ) -> anyhow::Result<Self> {
        let plan = CheckedPlan::new(plan)?;
        let options = RunOptions {
            allowed: allowed.clone(),
            is_quiet: true,
            shows_estimate: false,
            is_live: false,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            on_progress: watcher,
        };
        Ok(Self(execute::execute(&plan, &options)?))
    }

    /// Returns the record of the initiator.
    pub(super) fn record(&self) -> anyhow::Result<&Record> {
        let trials = self.0.run.tests.iter().flat_map(|test| &test.trials);
        let mut records = trials.flat_map(|trial| trial.records.values());
        let record = records.find(|record| record.side == Side::Initiator);
        record.ok_or_else(|| {
            let user_error = UserError::new(Exit::Failed, "nothing was measured");
            match &self.0.run.completeness {
                Completeness::Incomplete { reason } => user_error.with_line("why", reason).into(),
                Completeness::Complete => user_error.into(),
            }
        })
    }

    /// Returns true if a signal ended the run.
    pub(super) fn is_interrupted(&self) -> bool {
        self.0.signal.is_some()
    }
}

/// Returns the growth of a counter in the measured part, and the length of that part.
pub(super) fn measured_growth(record: &Record, counter: &str) -> (u64, Nanos) {
    let (from, to) = record.measured_ns;
    let total = || (record.totals.get(counter).copied().unwrap_or(0), to - from);
    record.timeline.growth(counter, from, to).unwrap_or_else(total)
}

/// Returns a rate. Over no time at all it is zero, where the original tools would divide by zero.
pub(super) fn per_second(number: u64, span: Nanos) -> f64 {
    if span == Nanos::ZERO { 0.0 } else { approximate(number) / span.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port_behind_a_scheme() {
        let cases = [
            ("http://a.example", Some(("a.example", "http", 80))),
            ("https://a.example?x", Some(("a.example", "https", 443))),
            ("http://[::1]:8080/a:b", Some(("::1", "8080", 8080))),
            ("127.0.0.1", None),
            ("http:///", None),
            ("http://a:0/", None),
            ("http://a:99999/", None),
        ];
        for (url, expected) in cases {
            let target = UrlTarget::of(url);
            let shown = target.as_ref().map(|target| (target.host.as_str(), target.service(), target.number()));
            let expected = expected.map(|(host, service, number)| (host, service.to_owned(), number));
            assert_eq!(shown, expected, "{url}");
        }
    }

    #[test]
    fn the_plan_of_a_face_is_complete_and_has_no_warm_up() {
        let settings = Settings::default().with("url", "http://127.0.0.1:1/").with("connections", "3");
        let load =
            ClosedLoop { title: "t".to_owned(), kind: CLOSED_LOOP_KIND, settings, duration: Nanos::from_secs(1) };
        let checked = CheckedPlan::new(load.plan()).unwrap();
        let plan = checked.plan();
        assert_eq!((plan.rounds, plan.tests[0].warmup.as_str()), (1, "0s"));
    }

    #[test]
    fn our_own_option_is_no_word_of_the_tool() {
        let words = ["-c1", "--fathom", "u"].map(str::to_owned);
        assert_eq!(without_extras(&words), (vec!["-c1".to_owned(), "u".to_owned()], ExtraOutput::Report));
        assert_eq!(without_extras(&words[2..]), (vec!["u".to_owned()], ExtraOutput::None));
    }
}
