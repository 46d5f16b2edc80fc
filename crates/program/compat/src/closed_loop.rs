//! What the drop-in load generators share: the plan of one closed loop from this machine, its run, and its record.

use std::{
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use fathom_engine::LiveProgress;
use fathom_model::{
    Plan, Record, Settings, Side, TestPlan,
    plan::{HostReach, SCHEMA},
    run::Completeness,
    units::{Nanos, approximate},
};
use fathom_report::{Format as _, formats::TextFormat, formats::TextStyle};

use fathom_run::{
    allow::AllowList,
    execute::{self, CheckedPlan, FinishedRun, RunOptions},
    exit::{Exit, UserError},
};

/// How long a target may take to accept the first connection: TCP sends its first segment three times in it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints to stdout at once, so that a reader sees the head of a result while the run goes on.
pub(super) fn print_now(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// What a drop-in tool offers beyond its tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtraOutput {
    /// Nothing: the text is the tool's own.
    None,
    /// `--fathom`: our own report behind it.
    Report,
}

/// Takes our own `--fathom` out of a tool's arguments.
pub(super) fn without_extras(words: &[String]) -> (Vec<String>, ExtraOutput) {
    let mut kept = words.to_vec();
    kept.retain(|word| word != "--fathom");
    let extras = if kept.len() < words.len() { ExtraOutput::Report } else { ExtraOutput::None };
    (kept, extras)
}

impl ExtraOutput {
    /// Prints what was asked for beyond the tool's text.
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

/// Where a URL points, as far as it must be known before the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UrlTarget {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) is_secure: bool,
}

impl UrlTarget {
    /// Nothing when there is no scheme and host in it.
    pub(super) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':')?.parse().ok().filter(|port| *port > 0)?),
        };
        let is_secure = scheme.eq_ignore_ascii_case("https");
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, is_secure })
    }

    /// The port as it was written, or the name of the service.
    pub(super) fn service(&self) -> String {
        self.port.map_or_else(|| if self.is_secure { "https" } else { "http" }.to_owned(), |port| port.to_string())
    }

    /// The port that is used.
    pub(super) fn number(&self) -> u16 {
        self.port.unwrap_or(if self.is_secure { 443 } else { 80 })
    }
}

/// Why a target gets no load.
#[derive(Debug)]
pub(super) enum TargetError {
    /// It is not one that the user has allowed: the end, with exit code 3.
    NotAllowed(UserError),
    /// Its name has no address.
    Unknown(String),
    /// It takes no connection: the address that was tried last, and why.
    Unreachable(SocketAddr, io::Error),
}

/// Whether requests may and can be sent to a target: first whether all of it is allowed, then a connect to any of it.
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

/// The C library's words for an error, as tools written in C print them.
pub(super) fn c_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The error behind the words of a record, which begin in lower case.
pub(super) fn error_from_text(text: &str) -> Option<io::Error> {
    // Linux has no error above this number (asm-generic/errno.h).
    const ERRNO_MAX: i32 = 133;
    (1..=ERRNO_MAX).map(io::Error::from_raw_os_error).find(|error| c_error_text(error).eq_ignore_ascii_case(text))
}

/// The kind of a closed loop without a script.
pub(super) const CLOSED_LOOP_KIND: &str = "http_closed";

/// A closed loop as a drop-in tool asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClosedLoop {
    pub(super) title: String,
    /// The kind of test: `http_closed`, unless a script says what is asked.
    pub(super) kind: &'static str,
    /// Options of that kind.
    pub(super) settings: Settings,
    pub(super) duration: Nanos,
}

/// What came of it.
pub(super) struct MeasuredLoop(pub(super) FinishedRun);

impl ClosedLoop {
    fn plan(&self) -> Plan {
        let here = "here".to_owned();
        let test = TestPlan {
            name: self.kind.to_owned(),
            kind: self.kind.to_owned(),
            from: here.clone(),
            to: None,
            // No tool behind these drop-ins has a warm-up: everything counts.
            beside: None,
            warmup: Nanos::ZERO.exact(),
            duration: self.duration.exact(),
            options: self.settings.clone(),
            expect: std::collections::BTreeMap::new(),
            search: None,
            benchmark: None,
        };
        Plan {
            schema: SCHEMA.to_owned(),
            title: self.title.clone(),
            rounds: 1,
            until_ci: None,
            seed: fathom_sys::clock::wall().0 & 0xffff_ffff,
            lab: None,
            via: None,
            hosts: [(here, HostReach::This)].into(),
            tests: vec![test],
        }
    }

    /// Runs it; `watcher` hears twice a second how far it is.
    pub(super) fn measure(
        &self,
        watcher: Option<Box<dyn Fn(LiveProgress)>>,
        allowed: &AllowList,
    ) -> anyhow::Result<MeasuredLoop> {
        let plan = CheckedPlan::new(self.plan())?;
        let surroundings = RunOptions {
            allowed: allowed.clone(),
            is_quiet: true,
            shows_estimate: false,
            is_live: false,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            on_progress: watcher,
        };
        Ok(MeasuredLoop(execute::execute(&plan, &surroundings)?))
    }
}

impl MeasuredLoop {
    /// What the side that asked recorded.
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

    /// Whether a signal ended it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.0.signal.is_some()
    }
}

/// What a counter grew by in the measured part, and how long that was.
pub(super) fn measured_growth(record: &Record, counter: &str) -> (u64, Nanos) {
    let (from, to) = record.measured_ns;
    let total = || (record.totals.get(counter).copied().unwrap_or(0), to - from);
    record.timeline.growth(counter, from, to).unwrap_or_else(total)
}

/// A rate; zero over no time at all, where the tools would divide by zero.
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
