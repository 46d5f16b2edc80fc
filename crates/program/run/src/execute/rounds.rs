//! The rounds of a plan: one trial of each test, again and again, until all are done or something ends the run.

use std::{collections::BTreeMap, io};

use fathom_engine::{LiveProgress, TestKind};
use fathom_fleet::{Assignment, Error, ErrorClass, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
use fathom_model::{
    Derivation, PeerAddresses, Phases, Plan, Role, Run, Settings, Side, TestPlan, TestRun, Trial, Unit, ValueKind,
    Verdict,
    benchmark::OwnMaximum,
    plan::HostReach,
    run::{Completeness, SCHEMA},
    units::{Nanos, approximate},
};
use fathom_report::formats::RunEvent;
use fathom_sys::{
    clock,
    process::signal::{self, Signal, SignalWatch},
};
use jiff::Zoned;

use super::{
    FinishedRun, RunOptions,
    benchmark::{self, ToolMaxima},
    estimate,
    search_spec::SearchSpec,
};
use crate::{
    allow,
    exit::{Exit, UserError, engine_error},
    hosts::{Hosts, fleet_error},
    progress::ProgressLine,
    registry,
    secrets::Secrets,
    store::{self, Calibration},
    target,
};

/// Intervals of a short trial are short, so that there are enough of them to see a warm-up end.
const INTERVAL_MIN: Nanos = Nanos::from_millis(10);
/// Intervals of a long trial: short enough for a plot, long enough to cost nothing.
const INTERVAL_MAX: Nanos = Nanos::from_millis(50);

/// How long a wait goes on at most before a signal is looked for.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// How often in a row the intervals must be narrow enough: once may be by chance, as they are looked at after every round.
const NARROW_ROUNDS: u32 = 2;

/// Runs a complete plan to its end and says what it means.
pub fn execute(plan: &Plan, surroundings: &RunOptions) -> anyhow::Result<FinishedRun> {
    // It may ask the user, and makes nothing: a signal simply ends it.
    check_targets(plan, surroundings)?;
    if surroundings.shows_estimate && !surroundings.is_quiet {
        eprintln!("{}", estimate::estimate_text(plan));
    }
    if measures_before_it_connects(plan) {
        // Who does not answer is told before anything is measured.
        let signals = signal::watch()?;
        Hosts::connect(plan, &store::run_id(&Zoned::now(), clock::wall().0))?.close()?;
        check_interrupted(&signals)?;
    }
    let own = benchmark::own_maxima(plan, surroundings)?;
    let signals = signal::watch()?;
    benchmark::check(&plan.tests, &own)?;
    let began = clock::now();
    let now = Zoned::now();
    let (shown, secrets) = Secrets::of(plan);
    let mut run = new_run(shown, &secrets.mask(&surroundings.command), &now)?;
    let mut hosts = Hosts::connect(plan, &run.id)?;
    check_interrupted(&signals)?;
    describe_hosts(&mut run, &mut hosts)?;
    let n_leading = plan.tests.iter().filter(|test| test.beside.is_none()).count();
    let mut course = RunExecutor {
        plan,
        options: surroundings,
        signals: &signals,
        own: &own,
        secrets: &secrets,
        progress: ProgressLine::of(
            n_leading * usize::try_from(plan.rounds).unwrap_or(1),
            estimate::time_max(plan),
            surroundings.is_quiet,
        ),
    };
    let ending = course.run_rounds(&mut run, &mut hosts);
    course.progress.clear();
    update_host_descriptions(&mut run, &mut hosts);
    hosts.close()?;
    ending?;
    run.took_ns = clock::now() - began;
    secrets.mask_errors(&mut run);
    let ceilings = Calibration::load().map(|kept| kept.ceilings_of(&run.tests)).unwrap_or_default();
    fathom_analyze::analyze(&mut run, &fathom_analyze::AnalysisContext { metrics: registry::metrics(), ceilings });
    Ok(FinishedRun { run, signal: signals.received() })
}

/// Ends the run with a word where a signal came before its first trial.
fn check_interrupted(signals: &SignalWatch) -> Result<(), UserError> {
    match signals.received() {
        Some(signal) => Err(UserError::new(Exit::Signalled(signal), "interrupted before anything was measured")),
        None => Ok(()),
    }
}

/// Whether the targets of a plan are allowed and all its hosts answer; nothing is measured.
pub fn check_hosts(plan: &Plan, surroundings: &RunOptions) -> anyhow::Result<()> {
    check_targets(plan, surroundings)?;
    Hosts::connect(plan, &store::run_id(&Zoned::now(), clock::wall().0))?.close()
}

/// Whether the tool measures itself before it talks to a host elsewhere.
fn measures_before_it_connects(plan: &Plan) -> bool {
    plan.tests.iter().any(|test| test.benchmark.is_some()) && !plan.hosts.values().all(HostReach::is_on_this_machine)
}

/// Refuses targets that are neither ours nor allowed, before anything is touched.
fn check_targets(plan: &Plan, surroundings: &RunOptions) -> Result<(), UserError> {
    for test in &plan.tests {
        // It makes rules and fills sockets where it runs, which is nobody's business on a machine that has another one.
        let is_in_lab = matches!(plan.hosts.get(&test.from), Some(HostReach::Lab(_) | HostReach::LabUp(..)));
        if test.kind == fathom_packet::kinds::stack_receive::NAME && !is_in_lab {
            return Err(UserError::new(Exit::Usage, "frames are put into the stack of a host of a lab only")
                .with_line("use", "fathom packet --lab pair --test stack-receive"));
        }
        if let Some(host) = fathom_probe::kinds::destination(&test.kind, &test.options) {
            target::check_probe(&host, (test, plan.hosts.get(&test.from)), &surroundings.allowed)?;
            // A `host` of other kinds is a server of another tool.
            continue;
        }
        // A script chooses among these while it runs, so that all of them are targets.
        let chosen = test.options.text(fathom_lua::ALLOW).unwrap_or_default();
        for word in chosen.split([',', ' ', '\n']).filter(|word| !word.is_empty()) {
            surroundings.allowed.check_network(word)?;
        }
        let server = fathom_interop::iperf3::destination(&test.options).map_err(|error| engine_error(&error))?;
        if let Some((host, _)) = server {
            // Who runs such a server has consented to its tests, and nothing else is sent there. Nothing connects to it here:
            // a server that serves one test would have served it.
            allow::check_single_host(&host, &target::resolve(&host)?)?;
        }
        let names = fathom_http::target::destinations(&test.options).map_err(|error| {
            let screen = UserError::new(Exit::Usage, error.to_string());
            error.hint().into_iter().fold(screen, |screen, hint| screen.with_line("try", hint))
        })?;
        for name in names {
            let addresses = target::resolve(&name.host)?;
            surroundings.allowed.check(&name.host, &addresses)?;
            // From another host it may be reached although it is not from here.
            if matches!(plan.hosts.get(&test.from), Some(HostReach::This | HostReach::At(_))) {
                target::check_reachable(&addresses, name.port)?;
            }
        }
    }
    Ok(())
}

/// The document of a run before its first trial; the plan holds no secrets.
fn new_run(plan: Plan, command: &str, now: &Zoned) -> anyhow::Result<Run> {
    let tests = plan.tests.iter().map(|test| {
        let kind = registry::kind(&test.kind).map_err(|error| engine_error(&error))?;
        Ok(TestRun {
            name: test.name.clone(),
            title: title(test, kind, &plan),
            layer: kind.layer(),
            kind: test.kind.clone(),
            from: test.from.clone(),
            to: test.to.clone(),
            options: test.options.clone(),
            expect: test.expect.clone(),
            trials: Vec::new(),
            flows: Vec::new(),
            summaries: Vec::new(),
            limits: Vec::new(),
            conservation: None,
            findings: Vec::new(),
            unavailable: None,
            curve: None,
            benchmark: None,
            users: None,
        })
    });
    Ok(Run {
        schema: SCHEMA.to_owned(),
        id: store::run_id(now, fathom_sys::clock::wall().0),
        tool: registry::TOOL.to_owned(),
        command: command.to_owned(),
        started: now.timestamp().to_string(),
        took_ns: Nanos::ZERO,
        tests: tests.collect::<anyhow::Result<_>>()?,
        plan,
        hosts: BTreeMap::new(),
        findings: Vec::new(),
        verdict: Verdict::default(),
        completeness: Completeness::Complete,
    })
}

/// Whether a benchmark found anything that is worth keeping.
fn has_results(test: &TestRun) -> bool {
    test.benchmark.as_ref().is_some_and(|benchmark| !benchmark.trials.is_empty())
}

/// What a test is called: a search by its objective too, and tests that would be called the same by their names.
fn title(test: &TestPlan, kind: &dyn TestKind, plan: &Plan) -> String {
    let mut title = kind.title(&test.options);
    let is_alike = |other: &TestPlan| other.kind == test.kind && kind.title(&other.options) == title;
    if plan.tests.iter().filter(|other| is_alike(other)).count() > 1 {
        title = match test.name.strip_prefix(&title) {
            Some(_) => test.name.clone(),
            None => format!("{title}, {}", test.name),
        };
    }
    match SearchSpec::of(test, kind) {
        Ok(spec) => format!("{title}, limit of {}", spec.objective_text()),
        Err(_) => title,
    }
}

/// Writes down what every host is before the first trial.
fn describe_hosts(run: &mut Run, hosts: &mut Hosts) -> Result<(), UserError> {
    for name in hosts.by_name.keys().cloned().collect::<Vec<_>>() {
        let environment = hosts.environment(&name).map_err(|error| fleet_error(&error))?;
        let mut host = hosts.fleet.describe(&name).map_err(|error| fleet_error(&error))?;
        let place = &hosts.by_name[&name];
        host.address = Some(place.address.to_string());
        host.interface.clone_from(&place.interface);
        host.further_interfaces.clone_from(&place.further_interfaces);
        host.losses.clone_from(&place.unavailable);
        host.environment = environment;
        run.hosts.insert(name, host);
    }
    Ok(())
}

/// Writes down what has changed on the hosts that are still there.
fn update_host_descriptions(run: &mut Run, hosts: &mut Hosts) {
    for (name, host) in &mut run.hosts {
        let Ok(after) = hosts.environment(name) else { continue };
        for difference in host.environment.differences(&after) {
            let value = difference.right.unwrap_or_else(|| "gone".to_owned());
            host.changed.note(&difference.topic, &difference.name, value);
        }
    }
}

/// The trials of a run under way.
pub(super) struct RunExecutor<'a> {
    plan: &'a Plan,
    options: &'a RunOptions,
    signals: &'a SignalWatch,
    own: &'a ToolMaxima,
    secrets: &'a Secrets,
    pub progress: ProgressLine,
}

impl RunExecutor<'_> {
    /// Goes through all rounds; what a failed test means for the run is written into it.
    fn run_rounds(&mut self, run: &mut Run, hosts: &mut Hosts) -> anyhow::Result<()> {
        let mut n_narrow = 0;
        for round in 0..self.plan.rounds {
            for (idx, test) in self.plan.tests.iter().enumerate().filter(|(_, test)| test.beside.is_none()) {
                // A search spreads its trials itself, and what it found would be no better for a second one.
                let is_search = test.search.is_some() || test.benchmark.is_some();
                let is_done = round > 0 && is_search;
                if run.tests[idx].unavailable.is_some() || is_done {
                    self.progress.end_trial();
                    continue;
                }
                let error = if test.search.is_some() {
                    self.search(&mut run.tests[idx], test, (&run.hosts, hosts))?
                } else if test.benchmark.is_some() {
                    self.benchmark(paired_runs(&mut run.tests, self.plan, test), test, (&run.hosts, hosts))?
                } else {
                    self.progress.begin_test(&run.tests[idx].title, round);
                    self.run_and_record_trial(paired_runs(&mut run.tests, self.plan, test), (test, round), hosts)?
                };
                self.progress.end_trial();
                if let Some(cut) = run.tests[idx].benchmark.as_ref().and_then(|benchmark| benchmark.cut.as_ref()) {
                    run.completeness =
                        Completeness::Incomplete { reason: format!("{}: {cut}", run.tests[idx].named()) };
                }
                if error.is_none()
                    && !is_search
                    && let Some(reason) = paired_runs(&mut run.tests, self.plan, test)
                        .into_iter()
                        .find_map(|test| test.trials.last().and_then(data_exhausted))
                {
                    run.completeness =
                        Completeness::Incomplete { reason: format!("{}: {reason}", run.tests[idx].named()) };
                    return Ok(());
                }
                if let Some(error) = error {
                    let goes_on = self.continues_after(&error, &mut run.tests[idx], &mut run.completeness)?;
                    let why = run.tests[idx].unavailable.clone();
                    for beside in paired_runs(&mut run.tests, self.plan, test).into_iter().skip(1) {
                        beside.unavailable.clone_from(&why);
                    }
                    if !goes_on {
                        return Ok(());
                    }
                }
            }
            n_narrow = if fathom_analyze::is_narrow(run, &registry::metrics()) { n_narrow + 1 } else { 0 };
            if n_narrow == NARROW_ROUNDS {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One trial, kept as far as it went; why it did not come to its end.
    fn run_and_record_trial(
        &self,
        into: Vec<&mut TestRun>,
        (test, round): (&TestPlan, u32),
        hosts: &mut Hosts,
    ) -> anyhow::Result<Option<Error>> {
        let outcome = self.run_trial(test, round, hosts);
        for (into, trial) in into.into_iter().zip(outcome.trials) {
            if self.is_live() {
                RunEvent::trial(&into.name, &trial).write(&mut io::stdout().lock())?;
            }
            if !trial.records.is_empty() {
                into.trials.push(trial);
            }
        }
        Ok(outcome.error)
    }

    /// Whether events are printed as they happen.
    pub(super) fn is_live(&self) -> bool {
        self.options.is_live
    }

    /// What the tool itself sends at a frame size, if it was measured.
    pub(super) fn own_maximum(&self, size_bytes: u64) -> Option<OwnMaximum> {
        self.own.get(&size_bytes).copied()
    }

    /// Waits between two trials, unless a signal ends the run.
    pub(super) fn wait(&self, span: Nanos) -> Result<(), Error> {
        let end = clock::now() + span;
        while clock::now() < end {
            if self.signals.received().is_some() {
                return Err(Error::Interrupted);
            }
            clock::sleep_until(end.min(clock::now() + SIGNAL_CHECK_EVERY));
        }
        Ok(())
    }

    /// Has the hosts play one trial, shown while it goes on: of the test, then of those that are made together with it.
    pub(super) fn run_trial(&self, test: &TestPlan, round: u32, hosts: &mut Hosts) -> TrialOutcome {
        let trial_plan = self.trial_plan(test, round, hosts);
        let rate = LiveRate::of(test);
        self.progress.start_trial(&phases(test, &self.plan.tests));
        let progress = &self.progress;
        let watcher = self.options.on_progress.as_ref();
        let mut live = |_: &str, side: Side, live: LiveProgress| {
            if side == rate.side {
                progress.show(&live, &rate.text(live));
            }
            if let Some(watcher) = watcher.filter(|_| side == Side::Initiator) {
                watcher(live);
            }
        };
        let signals = self.signals;
        let is_stopped = || signals.received().is_some();
        let mut supervision = TrialCallbacks { live: &mut live, is_stopped: &is_stopped };
        let mut outcome = hosts.fleet.run_trial(&trial_plan, &mut supervision);
        outcome.trials.iter_mut().for_each(|trial| self.secrets.mask_trial(trial));
        outcome
    }

    /// What an error of a trial means: the end of the run, or of the test; whether the run goes on.
    fn continues_after(
        &self,
        error: &Error,
        into: &mut TestRun,
        completeness: &mut Completeness,
    ) -> anyhow::Result<bool> {
        if let Error::Interrupted = error {
            let signal = match self.signals.received() {
                Some(Signal::Interrupt) | None => "ctrl-C",
                Some(Signal::Terminate) => "SIGTERM",
                Some(Signal::Hangup) => "SIGHUP",
            };
            *completeness = Completeness::Incomplete { reason: format!("interrupted by {signal}") };
            return Ok(false);
        }
        let is_alone = self.plan.tests.iter().filter(|test| test.beside.is_none()).count() == 1;
        match error.class() {
            ErrorClass::Incomplete => {
                *completeness = Completeness::Incomplete { reason: error.to_string() };
                Ok(false)
            }
            _ if is_alone && into.trials.is_empty() && into.curve.is_none() && !has_results(into) => {
                Err(fleet_error(error).into())
            }
            ErrorClass::Preflight | ErrorClass::Usage => {
                into.unavailable = Some(reason(error));
                Ok(true)
            }
            ErrorClass::Failed => {
                *completeness = Completeness::Incomplete { reason: format!("{}: {}", into.name, reason(error)) };
                into.unavailable = Some(reason(error));
                Ok(true)
            }
        }
    }

    /// What the user allows, where names are looked up again during a test: the answers may be others than those that were asked for.
    fn allowed_networks(&self, test: &TestPlan, host: &str) -> Option<Vec<String>> {
        let is_ours = matches!(self.plan.hosts.get(host), Some(HostReach::This | HostReach::At(_)));
        let is_given = |name: &str| test.options.text(name).is_some_and(|word| word != "once");
        let networks = || self.options.allowed.networks().iter().map(ToString::to_string).collect();
        (is_ours && is_given("url") && is_given("dns")).then(networks)
    }

    /// Who plays what in a trial of a test: all that is made together has the options and the spans of the one that leads.
    fn trial_plan(&self, test: &TestPlan, round: u32, hosts: &Hosts) -> TrialPlan {
        let phases = phases(test, &self.plan.tests);
        let (from_cores, to_cores) = hosts.cores(&test.from, test.to.as_deref());
        let part = |name: &str, host: &str, side: Side| {
            let place = &hosts.by_name[host];
            let is_served = matches!(self.plan.hosts.get(host), Some(HostReach::Tls { .. }));
            let settings =
                if is_served && side == Side::Responder { without_files(test) } else { test.options.clone() };
            // A host keeps its cores whatever it plays, but where it plays both ends.
            let is_answering = test.to.as_deref() == Some(host) && (test.from != host || side == Side::Responder);
            let role = Role {
                test: name.to_owned(),
                kind: test.kind.clone(),
                side,
                settings,
                phases,
                address: Some(place.address),
                interface: place.interface.clone(),
                peer: BTreeMap::new(),
                cores: if is_answering { to_cores.clone() } else { from_cores.clone() },
                meeting: PeerAddresses { within: self.allowed_networks(test, host), ..PeerAddresses::default() },
                seed: self.plan.seed.wrapping_add(u64::from(round)),
            };
            Assignment { host: host.to_owned(), role, interfaces: place.interface.iter().cloned().collect() }
        };
        let cast = |one: &TestPlan| TestRoles {
            initiators: vec![part(&one.name, &one.from, Side::Initiator)],
            responder: one.to.as_deref().map(|to| part(&one.name, to, Side::Responder)),
        };
        let bystander = |via: &String| {
            let place = &hosts.by_name[via];
            let interfaces = place.interface.iter().chain(&place.further_interfaces).cloned().collect();
            Assignment::observer(via, &part(&test.name, &test.from, Side::Initiator).role, interfaces)
        };
        TrialPlan {
            round,
            observers: self.plan.via.iter().map(bystander).collect(),
            tests: std::iter::once(test).chain(paired_tests(test, &self.plan.tests)).map(cast).collect(),
        }
    }
}

/// The tests of a plan that are made together with one.
fn paired_tests<'p>(test: &'p TestPlan, tests: &'p [TestPlan]) -> impl Iterator<Item = &'p TestPlan> {
    tests.iter().filter(|other| other.beside.as_ref() == Some(&test.name))
}

/// A complete plan's spans, which were parsed when it was completed.
fn phases(test: &TestPlan, tests: &[TestPlan]) -> Phases {
    let span = |text: &str| text.parse().unwrap_or(Nanos::ZERO);
    // What is to be left out in any case is the warm-up.
    let omitted = test.options.span("omit");
    let measure_ns: Nanos = span(&test.duration);
    let interval_ns = (measure_ns / 10).max(INTERVAL_MIN).min(INTERVAL_MAX);
    Phases {
        warmup_max_ns: omitted.unwrap_or_else(|| span(&test.warmup)),
        is_warmup_whole: omitted.is_some() || paired_tests(test, tests).next().is_some(),
        measure_ns,
        interval_ns,
    }
}

/// The runs of the tests that are made together, the one that the others are beside first.
fn paired_runs<'r>(tests: &'r mut [TestRun], plan: &Plan, lead: &TestPlan) -> Vec<&'r mut TestRun> {
    let is_one = |test: &TestPlan| test.name == lead.name || test.beside.as_ref() == Some(&lead.name);
    tests.iter_mut().zip(&plan.tests).filter(|(_, test)| is_one(test)).map(|(run, _)| run).collect()
}

/// Why no further trial can go otherwise than this one, which ended early for want of data; one that lost something may.
fn data_exhausted(trial: &Trial) -> Option<String> {
    let cut = trial.records.values().find(|record| !record.complete)?;
    cut.notes.iter().find(|note| note.id == "data-ended").map(|note| note.text.clone())
}

/// The options for a side that answers elsewhere: files are those of the side that asks, and only that there are some is told.
fn without_files(test: &TestPlan) -> Settings {
    let mut settings = test.options.clone();
    let options = registry::kind(&test.kind).map(TestKind::options).unwrap_or_default();
    for option in options.iter().filter(|option| option.value == ValueKind::File) {
        if settings.text(option.name).is_some() {
            settings.set(option.name, "");
        }
    }
    settings
}

fn reason(error: &Error) -> String {
    match error {
        Error::RoleFailed { failure, .. } => match failure.causes.first() {
            Some(cause) => format!("{} ({cause})", failure.message),
            None => failure.message.clone(),
        },
        other => other.to_string(),
    }
}

/// How a test's first metric is shown while it runs.
struct LiveRate {
    unit: Unit,
    side: Side,
}

impl LiveRate {
    fn of(test: &TestPlan) -> Self {
        let metric = registry::kind(&test.kind).ok().and_then(|kind| kind.metrics().first());
        match metric.map(|metric| (&metric.from, metric.unit)) {
            Some((Derivation::Rate { side, .. }, unit)) => Self { unit, side: *side },
            Some((Derivation::RateOfBoth { .. }, unit)) => Self { unit, side: Side::Initiator },
            _ => Self { unit: Unit::PerSec, side: Side::Initiator },
        }
    }

    fn text(&self, live: LiveProgress) -> String {
        let scale = if self.unit == Unit::BitsPerSec { 8.0 } else { 1.0 };
        let rate = approximate(live.growth) * scale / live.span.as_secs_f64();
        self.unit.show(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(name: &str, beside: Option<&str>) -> TestPlan {
        TestPlan {
            name: name.to_owned(),
            kind: "tcp_stream".to_owned(),
            from: "here".to_owned(),
            to: Some("here".to_owned()),
            beside: beside.map(str::to_owned),
            warmup: "1s".to_owned(),
            duration: "2s".to_owned(),
            options: Settings::default(),
            search: None,
            benchmark: None,
            expect: BTreeMap::new(),
        }
    }

    #[test]
    fn a_warm_up_is_whole_where_it_is_to_be_omitted_or_where_tests_are_made_together() {
        let mut omitting = planned("omitting", None);
        omitting.options.set("omit", "300ms");
        let tests = [planned("alone", None), omitting, planned("lead", None), planned("back", Some("lead"))];
        let of = |test: &TestPlan| {
            let phases = phases(test, &tests);
            (phases.warmup_max_ns, phases.is_warmup_whole, phases.measure_ns)
        };
        let (warmup, measured) = (Nanos::from_secs(1), Nanos::from_secs(2));
        assert_eq!(of(&tests[0]), (warmup, false, measured));
        assert_eq!(of(&tests[1]), (Nanos::from_millis(300), true, measured));
        assert_eq!(of(&tests[2]), (warmup, true, measured));
    }
}
