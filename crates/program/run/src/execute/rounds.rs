//! The rounds of a plan. Each round runs one trial of each test, until all rounds are done or something ends the run.

use std::{cell::RefCell, collections::BTreeSet, io, net::IpAddr};

use fathom_fleet::{Disconnected, EXACT_PAIRS_MAX, Error, ErrorClass};
use fathom_model::{
    Link, Metric, OnLoss, Plan, Run, TestRun, Trial,
    names::{count, host::DEVICE_COUNTERS},
    plan::HostReach,
    run::Completeness,
};
use fathom_report::formats::RunEvent;
use fathom_sys::{
    clock,
    policy::ResolvedNames,
    process::signal::{self, Signal, SignalWatch},
};
use jiff::Zoned;

use super::{
    FinishedRun, RunOptions,
    benchmark::{self, ToolMaxima},
    checked_plan::{CheckedPlan, CheckedTest, TestMethod},
    device_commands::{CommandFailure, DeviceControl},
    estimate,
    events::EventPlaces,
    pairs::Pair,
    search_spec::SearchSpec,
    server_host::{forget_unread_server, server_host, unread},
    trial_executor::{RunExecutor, check_interrupted, connect, new_run_id, progress_line},
};
use crate::{
    allow,
    exit::{Exit, UserError, engine_error},
    hosts::{Hosts, address_towards, fleet_error},
    registry,
    secrets::Secrets,
    store::{self, Calibration},
};

/// The rounds in a row with narrow enough intervals that end a run. The check runs after every round, so one may be chance.
const NARROW_ROUNDS: u32 = 2;

/// Runs a plan and analyzes the results.
pub fn execute(plan: &CheckedPlan, options: &RunOptions) -> anyhow::Result<FinishedRun> {
    // This may prompt the user and changes nothing, so a signal may kill the program here.
    let resolved = check_targets(plan, options)?;
    if options.shows_estimate && !options.is_quiet {
        eprintln!("{}", estimate::estimate_text(plan));
    }
    let signals = signal::watch()?;
    let own = own_maxima(plan, options, &signals)?;
    let began = clock::now();
    let now = Zoned::now();
    let (shown, secrets) = Secrets::of(plan.plan());
    let mut run = new_run(shown, plan, &secrets.mask(&options.command), &now)?;
    let mut hosts = connected_hosts(&mut run, plan, options, &signals)?;
    for (checked_test, names) in plan.tests.iter().zip(&resolved) {
        run.tests[checked_test.idx].server = server_host(checked_test, plan.plan(), &run.hosts, names);
    }
    let servers: Vec<Option<String>> = run.tests.iter().map(|test| test.server.clone()).collect();
    let unread = unread(plan, &run.tests);
    let mut device = device_control(plan.plan(), &hosts)?;
    device.start().map_err(UserError::from)?;
    let places = |test: &CheckedTest| EventPlaces::of(&test.events, plan.plan(), &hosts);
    let event_places = plan.tests.iter().map(places).collect::<Result<Vec<_>, _>>()?;
    let mut executor = RunExecutor {
        event_places: &event_places,
        plan,
        options,
        signals: &signals,
        own: &own,
        secrets: &secrets,
        resolved: &resolved,
        servers: &servers,
        unread: &unread,
        progress: progress_line(plan, options),
        lost: RefCell::default(),
        device,
    };
    let ceilings = Calibration::load().map(|kept| kept.ceilings_of(&run.tests)).unwrap_or_default();
    let context = fathom_analyze::AnalysisContext { metrics: registry::metrics(), ceilings };
    let ending =
        executor.run_rounds(&mut run, &mut hosts).and_then(|()| executor.prove(&mut run, &context, &mut hosts));
    executor.progress.clear();
    leave_out_optional(&mut run, &mut hosts);
    run.tests.iter_mut().for_each(forget_unread_server);
    update_host_descriptions(&mut run, &mut hosts);
    let stopped = executor.device.stop();
    if let (Err(_), Err(failure)) = (&ending, &stopped) {
        eprintln!("note: {failure}");
    }
    hosts.close()?;
    ending?;
    if let Err(failure) = stopped {
        executor.end_by(failure, &mut run)?;
    }
    executor.record_losses(&mut run);
    run.took_ns = clock::now() - began;
    secrets.mask_errors(&mut run);
    fathom_analyze::analyze(&mut run, &context);
    Ok(FinishedRun { run, signal: signals.received() })
}

/// Measures the maxima of the tool itself that benchmarks of the plan are compared with.
fn own_maxima(plan: &CheckedPlan, options: &RunOptions, signals: &SignalWatch) -> anyhow::Result<ToolMaxima> {
    if measures_before_it_connects(plan) {
        // Reports a host that does not answer before anything is measured.
        connect(plan.plan(), signals, &new_run_id(), &options.allowed)?.close()?;
    }
    let own = benchmark::own_maxima(plan, options, signals)?;
    check_interrupted(signals)?;
    benchmark::check(plan, &own)?;
    Ok(own)
}

/// Connects to the hosts of a plan, and describes them and the paths between them in the run.
fn connected_hosts(
    run: &mut Run,
    plan: &CheckedPlan,
    options: &RunOptions,
    signals: &SignalWatch,
) -> anyhow::Result<Hosts> {
    let mut hosts = connect(plan.plan(), signals, &run.id, &options.allowed)?;
    describe_hosts(run, &mut hosts)?;
    hosts.find_paths(plan.plan(), &mut run.hosts, &address_towards, &options.allowed)?;
    hosts.check_ways(plan.plan())?;
    Ok(hosts)
}

/// Checks that the targets of a plan are allowed and that all its hosts answer. Measures nothing.
pub fn check_hosts(plan: &CheckedPlan, options: &RunOptions) -> anyhow::Result<()> {
    check_targets(plan, options)?;
    Hosts::connect(plan.plan(), &new_run_id(), &options.allowed, &|| false)?.close()
}

/// Returns true if the tool measures its own maximum before it connects to a remote host.
fn measures_before_it_connects(plan: &CheckedPlan) -> bool {
    let is_elsewhere = !plan.plan().hosts.values().all(HostReach::is_on_this_machine);
    is_elsewhere && plan.tests.iter().any(|test| test.benchmark().is_some())
}

/// Rejects targets that are neither local nor allowed, before anything is touched. Returns the addresses of target names per test.
fn check_targets(plan: &CheckedPlan, options: &RunOptions) -> Result<Vec<ResolvedNames>, UserError> {
    let mut all = Vec::new();
    for test in &plan.tests {
        let kind = test.kind;
        let mut resolved = ResolvedNames::new();
        for from in test.initiating_hosts().map(|host| plan.plan().hosts.get(host)) {
            if kind.is_for_labs_only() && !from.is_some_and(HostReach::is_of_lab) {
                let text = format!("the test {} runs only in a lab", kind.name());
                return Err(UserError::new(Exit::Usage, text).with_line("use", "--lab pair"));
            }
            for target in kind.destinations(&test.options).map_err(|error| engine_error(&error))? {
                let target = target.from_hosts(test.pairs.len());
                let addresses = allow::check_target(&target, from, &options.allowed)?;
                // A zone (RFC 4007) is not part of an address and has a meaning only on its own host, so that host resolves such a
                // name.
                let is_name = target.host.parse::<IpAddr>().is_err() && !target.host.contains('%');
                if is_name && !addresses.is_empty() {
                    resolved.insert(target.host, addresses);
                }
            }
        }
        all.push(resolved);
    }
    Ok(all)
}

/// Creates the document of a run before its first trial. The plan holds no secrets.
fn new_run(plan: Plan, checked: &CheckedPlan, command: &str, now: &Zoned) -> anyhow::Result<Run> {
    let tests = plan.tests.iter().zip(&checked.tests).map(|(test, checked_test)| {
        Ok(TestRun {
            name: test.name.clone(),
            title: title(checked_test, checked),
            from: checked_test.from.clone(),
            to: checked_test.to.clone(),
            links: checked_test.pairs.iter().map(link).collect(),
            path: test.path.clone(),
            selected_by: checked_test.kind.command().map(|command| command.selection()),
            options: test.options.clone(),
            headline: checked_test.headline().map(str::to_owned),
            expect: test.expect.clone(),
            ..TestRun::new(checked_test.kind.layer(), &test.kind)
        })
    });
    Ok(Run {
        id: store::run_id(now, fathom_sys::clock::wall().0),
        tool: registry::TOOL.to_owned(),
        command: command.to_owned(),
        started: now.timestamp().to_string(),
        tests: tests.collect::<anyhow::Result<_>>()?,
        ..Run::new(plan)
    })
}

fn link(pair: &Pair) -> Link {
    Link { from: pair.from.clone(), to: pair.to.clone(), ..Link::default() }
}

/// Returns true if a test has at least one benchmark trial.
fn has_results(test: &TestRun) -> bool {
    test.benchmark.as_ref().is_some_and(|benchmark| !benchmark.trials.is_empty())
}

/// Returns the title of a test. The title of a search includes its objective; tests with equal titles get their names added.
fn title(test: &CheckedTest, plan: &CheckedPlan) -> String {
    let mut title = test.title();
    if let Some(comparison) = test.comparison.map(|idx| &plan.plan().comparisons[idx]) {
        let own = test.name.strip_prefix(&comparison.name).unwrap_or(&test.name).trim();
        // An option is in the title of the test itself.
        let is_option = |name: &str| test.kind.options().iter().any(|option| option.name == name);
        let at = comparison.at.as_ref().filter(|at| !is_option(&at.parameter));
        let at = at.map(|at| format!(", {}={}", at.parameter, at.value)).unwrap_or_default();
        return format!("{title}{at}, {own}");
    }
    let is_alike = |other: &CheckedTest| other.kind.name() == test.kind.name() && other.title() == title;
    if plan.tests.iter().filter(|other| is_alike(other)).count() > 1 {
        title = match test.name.strip_prefix(&title) {
            Some(_) => test.name.clone(),
            None => format!("{title}, {}", test.name),
        };
    }
    match test.search().map(SearchSpec::objective_text) {
        Some(objective) => format!("{title}, limit of {objective}"),
        None => title,
    }
}

/// Returns what rules the device of a plan by its commands.
fn device_control(plan: &Plan, hosts: &Hosts) -> Result<DeviceControl, UserError> {
    let place = plan.device.on.as_ref().map(|host| hosts.namespaces(plan, host)).transpose()?;
    Ok(DeviceControl::new(&plan.device, place))
}

/// Records the description of every host before the first trial.
fn describe_hosts(run: &mut Run, hosts: &mut Hosts) -> Result<(), UserError> {
    // Nothing was measured yet that a lost host could leave incomplete.
    let failed = |error: Error| match &error {
        Error::Disconnected { .. } => fleet_error(&error).with_exit(Exit::Preflight),
        _ => fleet_error(&error),
    };
    let names: Vec<String> = hosts.by_name.keys().cloned().collect();
    let environments = hosts.environments(&names);
    for (name, environment) in names.into_iter().zip(environments) {
        let environment = environment.map_err(failed)?;
        let mut host = hosts.fleet.describe(&name).map_err(failed)?;
        let place = &hosts.by_name[&name];
        host.address = Some(place.address.to_string());
        host.interface.clone_from(&place.interface);
        host.further_interfaces.clone_from(&place.further_interfaces);
        host.unavailable.clone_from(&place.unavailable);
        host.environment = environment;
        run.hosts.insert(name, host);
    }
    Ok(())
}

/// Takes the optional tests out of a run that could not begin. The host that was to begin them says why.
fn leave_out_optional(run: &mut Run, hosts: &mut Hosts) {
    let is_optional = |test: &TestRun| run.plan.tests.iter().any(|plan| plan.name == test.name && plan.optional);
    run.tests.retain(|test| {
        let why = test.unavailable.as_ref().filter(|_| test.trials.is_empty() && is_optional(test));
        if let Some(why) = why {
            hosts.add_unavailable(&test.from, vec![format!("{} (left out): {why}", test.title)]);
        }
        why.is_none()
    });
}

/// Records what could not be observed, and the changes on the hosts that still answer.
fn update_host_descriptions(run: &mut Run, hosts: &mut Hosts) {
    let with_counters: BTreeSet<&String> =
        run.tests.iter().flat_map(|test| &test.trials).flat_map(|trial| trial.hosts.keys()).collect();
    // Of hundreds of hosts, those are asked again whose counters were read: the others are namespaces of the same machines.
    let is_asked = |name: &&String| run.hosts.len() <= EXACT_PAIRS_MAX || with_counters.contains(name);
    let names: Vec<String> = run.hosts.keys().filter(is_asked).cloned().collect();
    for (name, host) in &mut run.hosts {
        host.unavailable.clone_from(&hosts.by_name[name].unavailable);
    }
    for (name, after) in names.iter().zip(hosts.environments(&names)) {
        let (Some(host), Ok(after)) = (run.hosts.get_mut(name), after) else { continue };
        for difference in host.environment.differences(&after) {
            let value = difference.right.unwrap_or_else(|| "gone".to_owned());
            host.changed.note(&difference.topic, &difference.name, value);
        }
    }
}

impl RunExecutor<'_> {
    /// Runs all rounds and records the effects of failed tests and commands in the run.
    fn run_rounds(&mut self, run: &mut Run, hosts: &mut Hosts) -> anyhow::Result<()> {
        let failure = match self.run_each_round(run, hosts) {
            Ok(goes_on) if !goes_on => return Ok(()),
            Ok(_) => None,
            Err(error) => Some(error.downcast::<CommandFailure>()?),
        };
        let is_interrupted = failure.as_ref().is_some_and(|failure| failure.is_interruption);
        if let Some(failure) = failure {
            self.end_by(failure, run)?;
        }
        // A device that died may be why a command failed.
        if !is_interrupted {
            self.check_silent_paths(run, hosts);
        }
        Ok(())
    }

    /// Ends the run because a command of the device failed. What was measured is kept.
    ///
    /// # Errors
    /// With the failure, if nothing was measured.
    fn end_by(&self, failure: CommandFailure, run: &mut Run) -> Result<(), UserError> {
        let is_measured = |test: &TestRun| !test.trials.is_empty() || test.curve.is_some() || has_results(test);
        if !failure.is_interruption && !run.tests.iter().any(is_measured) {
            return Err(failure.into());
        }
        add_reason(&mut run.completeness, if failure.is_interruption { self.interruption() } else { failure.reason() });
        Ok(())
    }

    /// Runs the rounds. Returns false if a test ended the run.
    fn run_each_round(&mut self, run: &mut Run, hosts: &mut Hosts) -> anyhow::Result<bool> {
        let mut n_narrow = 0;
        for round in 0..self.plan.plan().rounds {
            let mut set_for = None;
            for test in self.plan.order_of_round(round) {
                self.set_value(test, &mut set_for)?;
                if !self.run_test(test, round, run, hosts)? {
                    return Ok(false);
                }
            }
            n_narrow = if fathom_analyze::is_narrow(run, &registry::metrics()) { n_narrow + 1 } else { 0 };
            if n_narrow == NARROW_ROUNDS {
                break;
            }
        }
        Ok(true)
    }

    /// Looks whether a path still carries anything if its last trial ended in silence: a device that died there must not look like one that
    /// costs half of the rate.
    fn check_silent_paths(&self, run: &mut Run, hosts: &mut Hosts) {
        for test in self.plan.tests.iter().filter(|test| test.comparison.is_some()) {
            let main = test.kind.metrics().iter().find(|metric| fathom_analyze::is_main_rate(metric));
            let last = run.tests[test.idx].trials.last();
            if !last.is_some_and(|trial| fathom_analyze::ends_in_silence(run, trial, main)) {
                continue;
            }
            match self.look_again(test, main, run, hosts) {
                Ok(None) => {}
                Ok(Some(why)) => {
                    run.tests[test.idx].unavailable = Some(why.clone());
                    return add_reason(&mut run.completeness, why);
                }
                Err(Interrupted) => return add_reason(&mut run.completeness, self.interruption()),
            }
        }
    }

    /// Repeats a test whose path ended in silence. Returns why the path gives no number, if it is still silent.
    fn look_again(
        &self,
        test: &CheckedTest,
        main: Option<&Metric>,
        run: &Run,
        hosts: &mut Hosts,
    ) -> Result<Option<String>, Interrupted> {
        let path = test.path.as_deref().unwrap_or_default();
        // A sweep left the device with the value of its last comparison.
        if let Err(failure) = self.set_value(test, &mut None) {
            let why = failure.reason();
            if failure.is_interruption {
                return Err(Interrupted);
            }
            return Ok(Some(format!("the path `{path}` ended in silence, and could not be tried again: {why}")));
        }
        let outcome = self.run_trial(&test.shortened(), self.plan.plan().rounds, hosts);
        if matches!(outcome.error, Some(Error::Interrupted)) {
            return Err(Interrupted);
        }
        let is_silent = |trial: &Trial| fathom_analyze::path_fault(run, &run.tests[test.idx], trial, main).is_some();
        let is_dead = outcome.error.is_some() || outcome.trials.iter().any(is_silent);
        Ok(is_dead.then(|| format!("the path `{path}` carries nothing any more after the last round")))
    }

    /// Runs what a test has to do in a round. Returns true if the run goes on.
    fn run_test(&mut self, test: &CheckedTest, round: u32, run: &mut Run, hosts: &mut Hosts) -> anyhow::Result<bool> {
        let idx = test.idx;
        // A search or benchmark runs once: it schedules its own trials, and a second one would not improve the result.
        let is_search = !matches!(test.method, TestMethod::Rounds);
        let is_done = round > 0 && is_search;
        if self.lacks_hosts(test, &mut run.tests) || run.tests[idx].unavailable.is_some() || is_done {
            self.progress.end_trial();
            return Ok(true);
        }
        let error = match &test.method {
            TestMethod::Search(spec) => self.search(&mut run.tests[idx], test, spec, &run.hosts, hosts)?,
            TestMethod::Benchmark(spec) => {
                self.benchmark(paired_runs(&mut run.tests, test), test, spec, &run.hosts, hosts)?
            }
            TestMethod::Rounds => {
                self.progress.begin_test(&run.tests[idx].title, round);
                self.run_and_record_trial(paired_runs(&mut run.tests, test), test, round, hosts)?
            }
        };
        self.progress.end_trial();
        if error.is_none()
            && !is_search
            && let Some(reason) = paired_runs(&mut run.tests, test)
                .into_iter()
                .find_map(|test| test.trials.last().and_then(data_exhausted))
        {
            run.completeness = Completeness::Incomplete { reason: format!("{}: {reason}", run.tests[idx].full_name()) };
            return Ok(false);
        }
        if test.comparison.is_some() && !matches!(error, Some(Error::Interrupted)) {
            return Ok(!ends_comparison(error.as_ref(), test, round, run, hosts)?);
        }
        if let Some(cut) = run.tests[idx].benchmark.as_ref().and_then(|benchmark| benchmark.cut.as_ref()) {
            run.completeness = Completeness::Incomplete { reason: format!("{}: {cut}", run.tests[idx].full_name()) };
        }
        let Some(error) = error else {
            tell_unknown_addresses(test, run, hosts);
            return Ok(true);
        };
        let goes_on = self.continues_after(&error, (test, round), &mut run.tests[idx], &mut run.completeness, hosts)?;
        let why = run.tests[idx].unavailable.clone();
        for paired in paired_runs(&mut run.tests, test).into_iter().skip(1) {
            paired.unavailable.clone_from(&why);
        }
        Ok(goes_on)
    }

    /// Sets the value of a sweep before the first test of its comparison in a round.
    fn set_value(&self, test: &CheckedTest, set_for: &mut Option<usize>) -> Result<(), CommandFailure> {
        if test.comparison == *set_for {
            return Ok(());
        }
        *set_for = test.comparison;
        let command = test.comparison.and_then(|idx| self.plan.plan().comparisons[idx].set.as_ref());
        command.map_or(Ok(()), |command| self.device.set(command))
    }

    /// Runs one trial and keeps its records, even if it ended early. Returns the error that ended it.
    fn run_and_record_trial(
        &self,
        into: Vec<&mut TestRun>,
        test: &CheckedTest,
        round: u32,
        hosts: &mut Hosts,
    ) -> anyhow::Result<Option<Error>> {
        let before = self.device.counters()?;
        let mut outcome = self.run_trial(test, round, hosts);
        // A trial is kept without them if they cannot be read after it, and after ctrl-C nobody waits for them.
        let is_interrupted = self.signals.received().is_some();
        let after = if is_interrupted { Ok(None) } else { self.device.counters() };
        if let Some((before, after)) = before.as_ref().zip(after.as_ref().ok().and_then(Option::as_ref)) {
            let counted = before.until(after);
            for trial in &mut outcome.trials {
                trial.hosts.insert(DEVICE_COUNTERS.to_owned(), counted.clone());
            }
        }
        for (into, trial) in into.into_iter().zip(outcome.trials) {
            if self.is_live() {
                RunEvent::trial(&into.name, &trial).write(&mut io::stdout().lock())?;
            }
            if !trial.records.is_empty() {
                into.trials.push(trial);
            }
        }
        match outcome.error {
            // What ended the trial may be why the command failed.
            Some(error) => Ok(Some(error)),
            None => Ok(after.map(|_| None)?),
        }
    }

    /// Returns true if a host that the test needs was lost. Without a round that was complete before, the test says so.
    fn lacks_hosts(&self, test: &CheckedTest, tests: &mut [TestRun]) -> bool {
        let lost = self.lost.borrow();
        let Some((host, how)) = lost.iter().find(|(host, _)| test.needs(host)) else { return false };
        // How a host was lost with its head stands at the head.
        let how = if how.is_empty() { format!("host `{host}` was lost with its head") } else { how.clone() };
        for run in paired_runs(tests, test).into_iter().filter(|run| run.trials.is_empty()) {
            run.unavailable = Some(how.clone());
        }
        true
    }

    /// Returns true if the others go on without a host, and one of the tests can run without it.
    fn can_spare(&self, host: &str) -> bool {
        self.plan.plan().on_loss == OnLoss::Continue && self.plan.leading_tests().any(|test| !test.needs(host))
    }

    /// Returns the words for the signal that interrupted the run.
    pub(super) fn interruption(&self) -> String {
        let signal = match self.signals.received() {
            Some(Signal::Interrupt) | None => "ctrl-C",
            Some(Signal::Terminate) => "SIGTERM",
            Some(Signal::Hangup) => "SIGHUP",
        };
        format!("interrupted by {signal}")
    }

    /// Records that hosts were lost while the others went on.
    fn record_losses(&self, run: &mut Run) {
        let lost = self.lost.borrow();
        if lost.is_empty() || run.completeness != Completeness::Complete {
            return;
        }
        let names: Vec<&String> = lost.keys().collect();
        let how: Vec<&str> = lost.values().map(String::as_str).filter(|how| !how.is_empty()).collect();
        let how = how.join("; ");
        let share = self.plan.leading_tests().find_map(|test| hosts_left(test, &names));
        run.completeness =
            Completeness::Incomplete { reason: share.map_or_else(|| how.clone(), |share| format!("{share}: {how}")) };
    }

    /// Records whether an error of a trial ends the run or only the test. Returns true if the run continues.
    fn continues_after(
        &self,
        error: &Error,
        (test, round): (&CheckedTest, u32),
        into: &mut TestRun,
        completeness: &mut Completeness,
        hosts: &Hosts,
    ) -> anyhow::Result<bool> {
        if let Error::Interrupted = error {
            *completeness = Completeness::Incomplete { reason: self.interruption() };
            return Ok(false);
        }
        let is_alone = self.plan.leading_tests().count() == 1;
        if let Error::Disconnected { host, .. } = error
            && self.can_spare(host)
        {
            self.lost.borrow_mut().insert(host.clone(), reason(error));
            into.unavailable = into.trials.is_empty().then(|| reason(error));
            return Ok(true);
        }
        match error.class() {
            ErrorClass::Incomplete => {
                let share = match error {
                    Error::Disconnected { host, loss: Disconnected::Head { members, .. }, .. } => {
                        hosts_left(test, &members.iter().chain([host]).collect::<Vec<_>>())
                    }
                    Error::Disconnected { host, .. } => hosts_left(test, &[host]),
                    _ => None,
                };
                let reason = share.map_or_else(|| reason(error), |share| format!("{share}: {}", reason(error)));
                *completeness = Completeness::Incomplete { reason };
                Ok(false)
            }
            _ if is_alone && into.trials.is_empty() && into.curve.is_none() && !has_results(into) => {
                Err(with_allowance(fleet_error(error), error, test, hosts).into())
            }
            // The rounds before it have results, and the next one may have. A trial that failed may have left a record of one side.
            _ if matches!(test.method, TestMethod::Rounds) && into.trials.iter().any(|trial| trial.round < round) => {
                add_failed_round(completeness, &into.full_name(), &reason(error));
                Ok(true)
            }
            ErrorClass::Preflight | ErrorClass::Usage => {
                if self.may_be_closed_port(error, test, hosts) {
                    add_reason(completeness, CLOSED_PORTS.to_owned());
                }
                into.unavailable = Some(reason_with_allowance(error, test, hosts));
                Ok(true)
            }
            ErrorClass::Failed => {
                let why = reason_with_allowance(error, test, hosts);
                if self.may_be_closed_port(error, test, hosts) {
                    add_reason(completeness, CLOSED_PORTS.to_owned());
                }
                add_reason(completeness, format!("{}: {why}", into.full_name()));
                into.unavailable = Some(why);
                Ok(true)
            }
        }
    }

    /// Returns true if a test could not reach the other side, whose agent answers: a firewall may let the port of the agent pass alone.
    fn may_be_closed_port(&self, error: &Error, test: &CheckedTest, hosts: &Hosts) -> bool {
        let is_remote =
            |host: &String| self.plan.plan().hosts.get(host).is_some_and(|reach| !reach.is_on_this_machine());
        let has_port = test.kind.options().iter().any(|option| option.name == "port");
        has_port
            && error.is_between_hosts()
            && test.to.as_ref().is_some_and(is_remote)
            && hosts.allowances(test.path.as_deref()).is_empty()
    }
}

/// A signal ended a part of the run.
struct Interrupted;

/// What tests that reach nothing have in common, if the agent of the other side is there.
const CLOSED_PORTS: &str = "the target answers on its control port but not on the ports of these tests: if a firewall drops them, open one port and pass it with --port";

/// Makes a run incomplete for one more reason.
fn add_reason(completeness: &mut Completeness, why: String) {
    let reason = match completeness {
        Completeness::Incomplete { reason } if reason.contains(&why) => return,
        Completeness::Incomplete { reason } => format!("{reason}; {why}"),
        Completeness::Complete => why,
    };
    *completeness = Completeness::Incomplete { reason };
}

/// Makes a run incomplete because a round of a test failed, unless another one failed in the same way with other numbers: each round has ports of its own.
fn add_failed_round(completeness: &mut Completeness, test: &str, why: &str) {
    let without_numbers = |text: &str| text.replace(|letter: char| letter.is_ascii_digit(), "");
    let why = format!("{test}: {why}");
    let is_told = |told: &str| without_numbers(told).contains(&without_numbers(&why));
    if !matches!(completeness, Completeness::Incomplete { reason } if is_told(reason)) {
        add_reason(completeness, why);
    }
}

/// Adds what a served host may need to an error of the way to it; other errors have nothing to do with that.
fn with_allowance(user_error: UserError, error: &Error, test: &CheckedTest, hosts: &Hosts) -> UserError {
    if error.is_between_hosts() { hosts.with_allowance(user_error, test.path.as_deref()) } else { user_error }
}

/// Returns the same as one text.
fn reason_with_allowance(error: &Error, test: &CheckedTest, hosts: &Hosts) -> String {
    let allowances = if error.is_between_hosts() { hosts.allowances(test.path.as_deref()) } else { Vec::new() };
    [vec![reason(error)], allowances].concat().join("; ")
}

/// Says why the newest trial of a test carried nothing, if a served host takes nothing from the address that this machine has on the path: many
/// tests count what is refused, and end without an error.
fn tell_unknown_addresses(test: &CheckedTest, run: &mut Run, hosts: &Hosts) {
    let allowances = hosts.allowances(test.path.as_deref());
    let main = test.kind.metrics().iter().find(|metric| fathom_analyze::is_main_rate(metric));
    let is_nothing = |run: &&mut TestRun| {
        run.trials.last().is_some_and(|trial| match main {
            Some(_) => fathom_analyze::has_carried_nothing(trial, main),
            None => has_refused(trial),
        })
    };
    if !allowances.is_empty() && paired_runs(&mut run.tests, test).iter().any(is_nothing) {
        for why in allowances {
            add_reason(&mut run.completeness, why);
        }
    }
}

/// Whether ports of a trial turned packets or connections of others away.
fn has_refused(trial: &Trial) -> bool {
    let counters = [count::PORT_DROPPED, count::PORT_RESET];
    trial.records.values().any(|record| counters.iter().any(|name| record.totals.get(*name) > Some(&0)))
}

/// Returns true if the newest trial of a compared test failed, or shows that its path gives no number. Then the run ends.
///
/// # Errors
/// If that was seen in the first round: nothing is measured.
fn ends_comparison(
    error: Option<&Error>,
    test: &CheckedTest,
    round: u32,
    run: &mut Run,
    hosts: &Hosts,
) -> Result<bool, UserError> {
    let place = || format!("test `{}`", test.name);
    if let Some(error) = error {
        if round == 0 {
            return Err(with_allowance(fleet_error(error), error, test, hosts).with_line("in", place()));
        }
        run.tests[test.idx].unavailable = Some(reason(error));
        run.completeness = Completeness::Incomplete { reason: format!("{}: {}", test.name, reason(error)) };
        return Ok(true);
    }
    if round == 0 {
        // Now the neighbors of this machine are known.
        hosts.check_ways(&run.plan).map_err(|error| error.with_line("in", place()))?;
    }
    let of_test = &run.tests[test.idx];
    let main = test.kind.metrics().iter().find(|metric| fathom_analyze::is_main_rate(metric));
    let fault = of_test.trials.last().and_then(|trial| fathom_analyze::path_fault(run, of_test, trial, main));
    match fault {
        None => Ok(false),
        Some(why) if round == 0 => {
            let user_error = UserError::new(Exit::Preflight, format!("nothing is measured: {why}"));
            let is_nothing =
                of_test.trials.last().is_some_and(|trial| fathom_analyze::has_carried_nothing(trial, main));
            let user_error =
                if is_nothing { hosts.with_allowance(user_error, test.path.as_deref()) } else { user_error };
            Err(user_error.with_line("in", place()))
        }
        Some(why) => {
            run.completeness = Completeness::Incomplete { reason: why };
            Ok(true)
        }
    }
}

/// Says how many hosts of a test of several hosts are left without the lost ones: `7 of 8 hosts`. The single host at the other end of a
/// star does not count.
fn hosts_left(test: &CheckedTest, lost: &[&String]) -> Option<String> {
    let ends = |end: fn(&Pair) -> Option<&String>| test.pairs.iter().filter_map(end).collect::<BTreeSet<_>>();
    let sides = [ends(|pair| Some(&pair.from)), ends(|pair| pair.to.as_ref())];
    let all: BTreeSet<&String> = sides.into_iter().filter(|side| side.len() > 1).flatten().collect();
    let n_lost = lost.iter().filter(|host| all.contains(*host)).count();
    (n_lost > 0).then(|| format!("{} of {} hosts", all.len() - n_lost, all.len()))
}

/// Returns the runs of a leading test and of its other direction, the leading one first.
fn paired_runs<'r>(tests: &'r mut [TestRun], lead: &CheckedTest) -> Vec<&'r mut TestRun> {
    // The test of the other direction comes after its leading test.
    tests
        .iter_mut()
        .enumerate()
        .filter(|(idx, _)| *idx == lead.idx || Some(*idx) == lead.reverse)
        .map(|(_, run)| run)
        .collect()
}

/// Returns the reason if a trial ended early because its data ran out: every further trial would end the same way. A trial that is
/// incomplete for another reason returns none, since the next one may be complete.
fn data_exhausted(trial: &Trial) -> Option<String> {
    let cut = trial.records.values().find(|record| !record.complete)?;
    cut.notes.iter().find(|note| note.id == "data-ended").map(|note| note.text.clone())
}

/// Returns the reason of an error for a person who did not see what was attempted.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::RoleFailed { failure, .. } if failure.causes.is_empty() => failure.message.clone(),
        Error::RoleFailed { failure, .. } => format!("{} ({})", failure.message, failure.causes.join(": ")),
        // A run with a lost host ends with a report, which has no other place for it.
        Error::Disconnected { .. } => error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}")),
        other => other.to_string(),
    }
}
