//! One trial of a plan: its roles, its duration and its progress display.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use fathom_engine::LiveProgress;
use fathom_fleet::{
    Assignment, Disconnected, EXACT_PAIRS_MAX, Error, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan,
};
use fathom_model::{
    Derivation, Environment, LinkTrial, NextStep, Note, OnLoss, PeerAddresses, Plan, Role, Settings, Side, Trial, Unit,
    ValueKind,
    benchmark::OwnMaximum,
    plan::HostReach,
    run::Host,
    units::{Nanos, approximate},
};
use fathom_sys::{clock, policy::ResolvedNames, process::signal::SignalWatch};

use jiff::Zoned;

use super::{
    RunOptions,
    checked_plan::{CheckedPlan, CheckedTest},
    device_commands::DeviceControl,
    estimate,
    events::{EventClock, EventPlaces, run_with_events},
    pairs::Pair,
    server_host::note_unread,
};
use crate::{
    allow::AllowList,
    exit::{Exit, UserError},
    hosts::{Hosts, PathHost},
    progress::ProgressLine,
    secrets::Secrets,
    store,
};

/// The longest wait between two checks for a signal.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// Runs the trials of a run.
pub(super) struct RunExecutor<'a> {
    pub(super) plan: &'a CheckedPlan,
    pub(super) options: &'a RunOptions,
    pub(super) signals: &'a SignalWatch,
    /// The tool's own maximum by frame size in bytes.
    pub(super) own: &'a BTreeMap<u64, OwnMaximum>,
    pub(super) secrets: &'a Secrets,
    /// The addresses of the target names of each test.
    pub(super) resolved: &'a [ResolvedNames],
    /// The host of the run on which the server of each test runs that is not fathom's, if any.
    pub(super) servers: &'a [Option<String>],
    /// Why the host of each test's server is not read, if somebody named it.
    pub(super) unread: &'a [Option<String>],
    pub(super) progress: ProgressLine,
    /// Where the events of each test run.
    pub(super) event_places: &'a [EventPlaces],
    /// The hosts that were lost while the others went on, each with the error that tells how.
    pub(super) lost: RefCell<BTreeMap<String, String>>,
    /// The device under test, as far as commands of the plan rule it.
    pub(super) device: DeviceControl,
}

impl RunExecutor<'_> {
    /// Returns true if events are printed as they happen.
    pub(super) fn is_live(&self) -> bool {
        self.options.is_live
    }

    /// Returns the tool's own maximum at a frame size, if it was measured.
    pub(super) fn own_maximum(&self, size_bytes: u64) -> Option<OwnMaximum> {
        self.own.get(&size_bytes).copied()
    }

    /// Waits between two trials. A signal ends the wait with an error.
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

    /// Runs one trial on the hosts and shows its progress. In the result, the trial of the other direction follows the test's own.
    pub(super) fn run_trial(&self, test: &CheckedTest, round: u32, hosts: &mut Hosts) -> TrialOutcome {
        let pairs = self.connected_pairs(test, hosts);
        let trial_plan = self.trial_plan(test, &pairs, round, hosts);
        let rate = LiveRate::of(test);
        self.progress.start_trial(&test.phases);
        let progress = &self.progress;
        let watcher = self.options.on_progress.as_ref();
        let mut hosts_live = HostsLive::of(test, &pairs);
        let mut live = |n: usize, _: &str, side: Side, live: LiveProgress| {
            if side == rate.side && !pairs.is_empty() {
                hosts_live.add(n, clock::now(), rate.per_sec(live), live.measuring);
                // The percentile is that of one pair, and means nothing beside the sum.
                progress.show(&LiveProgress { p99: None, ..live }, &rate.unit.show(hosts_live.total()));
                // Above that, hosts report together.
                if progress.is_shown() && pairs.len() <= EXACT_PAIRS_MAX {
                    progress.show_hosts(&hosts_live.lines(clock::now(), rate.unit));
                }
            } else if side == rate.side && n == 0 {
                progress.show(&live, &rate.text(live));
            }
            if let Some(watcher) = watcher.filter(|_| side == Side::Initiator && n == 0) {
                watcher(live);
            }
        };
        let signals = self.signals;
        let is_stopped = || signals.received().is_some();
        let event_clock = EventClock::default();
        let on_start = |at| event_clock.start(at);
        let mut supervision = TrialCallbacks { live: &mut live, is_stopped: &is_stopped, on_start: &on_start };
        let trial = || hosts.fleet.run_trial(&trial_plan, &mut supervision);
        let mut outcome = self.with_events(test, &event_clock, trial);
        explain_unreached(test, &mut outcome, hosts);
        outcome.trials.iter_mut().for_each(|trial| self.secrets.mask_trial(trial));
        if let (Some(text), Some(trial)) = (self.unread.get(test.idx).cloned().flatten(), outcome.trials.first_mut()) {
            note_unread(trial, text);
        }
        for lost in &outcome.lost {
            // Nothing is missing but its counters.
            if trial_plan.spared.contains(&lost.host) && !self.plan.tests.iter().any(|test| test.has_end(&lost.host)) {
                let text =
                    format!("contact with the server's host was lost, so its counters are not read: {}", lost.error);
                if let Some(trial) = outcome.trials.first_mut() {
                    note_unread(trial, self.secrets.mask(&text));
                }
                continue;
            }
            // The error of a head names all hosts that were lost with it.
            let is_told = matches!(&lost.error, Error::Disconnected { loss: Disconnected::WithHead { .. }, .. });
            let how = if is_told { String::new() } else { lost.error.to_string() };
            self.lost.borrow_mut().insert(lost.host.clone(), how);
        }
        if !test.pairs.is_empty() {
            let mut joined = self.joined(test, &pairs, &mut outcome, hosts);
            let record = joined.records.values_mut().next().filter(|_| !trial_plan.unwatched.is_empty());
            if let Some(record) = record {
                record.notes.push(unwatched_note(trial_plan.unwatched.len()));
            }
            if let Some(record) = joined.records.values_mut().next() {
                record.notes.extend(test.unpaired.iter().map(|text| Note::new("host-without-pair", text)));
            }
            outcome.trials = vec![joined];
        }
        for (host, losses) in std::mem::take(&mut outcome.unavailable) {
            hosts.add_unavailable(&host, losses);
        }
        outcome
    }

    /// Runs a trial of a test, and what happens during it.
    fn with_events(
        &self,
        test: &CheckedTest,
        clock: &EventClock,
        trial: impl FnOnce() -> TrialOutcome,
    ) -> TrialOutcome {
        if test.events.is_empty() {
            return trial();
        }
        // A test with events is one of the run's own, whose places are all known.
        let (mut outcome, happened, left) = run_with_events(&test.events, &self.event_places[test.idx], clock, trial);
        if let Some(trial) = outcome.trials.first_mut() {
            trial.events = happened;
            if let Some(record) = trial.records.values_mut().next() {
                let note = |left: &String| Note::new("event-not-undone", left.clone());
                record.notes.extend(left.iter().map(note));
            }
        }
        for left in left {
            eprintln!("fathom: {left}");
        }
        outcome
    }

    /// Returns the allowed networks for a test that resolves names again while it runs.
    fn allowed_networks(&self, test: &CheckedTest, host: &str) -> Option<Vec<String>> {
        // A lab resolves nothing, and a served host has an allow-list of its own.
        let is_ours = matches!(
            self.plan.plan().hosts.get(host),
            Some(
                HostReach::This | HostReach::At(_) | HostReach::Ssh(_) | HostReach::Exec(_) | HostReach::Kubernetes(_)
            )
        );
        let is_given = |name: &str| test.options.text(name).is_some_and(|word| word != "once");
        let networks = || self.options.allowed.networks().iter().map(ToString::to_string).collect();
        (is_ours && is_given("url") && is_given("dns")).then(networks)
    }

    /// Returns the pairs of a test, each with its place among all of them. Those of hosts that were lost are left out if the others go on.
    fn connected_pairs<'t>(&self, test: &'t CheckedTest, hosts: &Hosts) -> Vec<(usize, &'t Pair)> {
        let lost = self.lost.borrow();
        let is_there = |host: &String| hosts.fleet.has(host) || !lost.contains_key(host);
        let is_whole = |(_, pair): &(usize, &Pair)| is_there(&pair.from) && pair.to.as_ref().is_none_or(is_there);
        test.pairs.iter().enumerate().filter(is_whole).collect()
    }

    /// Joins the trials of all pairs to the one trial of the test.
    fn joined(&self, test: &CheckedTest, pairs: &[(usize, &Pair)], outcome: &mut TrialOutcome, hosts: &Hosts) -> Trial {
        let lost = self.lost.borrow().keys().cloned().collect();
        let mut joined = Trial { start_skew_ns: outcome.start_skew, lost, ..Trial::default() };
        for ((_, pair), trial) in pairs.iter().zip(std::mem::take(&mut outcome.trials)) {
            joined.round = trial.round;
            joined.hosts.extend(trial.hosts);
            joined.links.push(LinkTrial { from: pair.from.clone(), to: pair.to.clone(), records: trial.records });
        }
        let offset = |name: &String| Some((name.clone(), hosts.fleet.describe(name).ok()?.clock_offset_ns));
        let names = joined.links.iter().flat_map(|link| std::iter::once(&link.from).chain(&link.to));
        let names = names.chain(outcome.merged.iter().map(|merged| &merged.clock_of));
        let clocks = names.collect::<BTreeSet<_>>().into_iter().filter_map(offset).collect();
        fathom_analyze::join_pairs(&mut joined, (&test.from, test.to.as_deref()), &clocks, &outcome.merged);
        joined
    }

    /// Assigns the roles of a trial. Both directions use the options and phases of the leading test.
    fn trial_plan(&self, test: &CheckedTest, pairs: &[(usize, &Pair)], round: u32, hosts: &Hosts) -> TrialPlan {
        if !test.pairs.is_empty() {
            return self.plan_of_pairs(test, pairs, round, hosts);
        }
        let (from_cores, to_cores) = hosts.cores(&test.from, test.to.as_deref());
        let part = |name: &str, host: &str, side: Side| {
            let place = &*hosts.at(host, test.path.as_deref());
            let settings = self.settings(test, test.options.clone(), host, side);
            // A host uses the same cores in both directions, unless it plays both roles.
            let is_answering = test.to.as_deref() == Some(host) && (test.from != host || side == Side::Responder);
            let cores = if is_answering { to_cores.clone() } else { from_cores.clone() };
            let role = self.role(test, place, host, side, RoleParts { settings, cores, place: 0, round });
            let role = Role { test: name.to_owned(), ..role };
            Assignment { host: host.to_owned(), role }
        };
        let cast = |one: &CheckedTest| TestRoles {
            initiators: vec![part(&one.name, &one.from, Side::Initiator)],
            responder: one.to.as_deref().map(|to| part(&one.name, to, Side::Responder)),
            translated: one.to.as_deref().and_then(|to| self.translated(one, to, hosts)),
        };
        let observer = |host: &String| Assignment::observer(host, &part(&test.name, &test.from, Side::Initiator).role);
        TrialPlan {
            round,
            observers: self.plan.plan().via.iter().chain(self.server(test, hosts)).map(observer).collect(),
            tests: std::iter::once(test).chain(self.plan.reverse_of(test)).map(cast).collect(),
            on_loss: OnLoss::Fail,
            spared: self.server(test, hosts).cloned().into_iter().collect(),
            unwatched: BTreeSet::new(),
        }
    }

    /// Assigns the roles of all pairs of a test. Each host has a role that observes it for the whole trial.
    fn plan_of_pairs(&self, test: &CheckedTest, pairs: &[(usize, &Pair)], round: u32, hosts: &Hosts) -> TrialPlan {
        let part = |place: usize, (host, side): (&str, Side), cores: Vec<usize>| {
            let settings = self.settings(test, test.options_of_pair(place), host, side);
            let at = &*hosts.at(host, test.path.as_deref());
            let role = self.role(test, at, host, side, RoleParts { settings, cores, place, round });
            Assignment { host: host.to_owned(), role }
        };
        let of_pair = |(place, pair): &(usize, &Pair)| {
            let (from_cores, to_cores) = hosts.cores(&pair.from, pair.to.as_deref());
            TestRoles {
                initiators: vec![part(*place, (&pair.from, Side::Initiator), from_cores)],
                responder: pair.to.as_deref().map(|to| part(*place, (to, Side::Responder), to_cores)),
                translated: pair.to.as_deref().and_then(|to| self.translated(test, to, hosts)),
            }
        };
        let tests: Vec<TestRoles> = pairs.iter().map(of_pair).collect();
        let mut observers: BTreeMap<&str, Assignment> = BTreeMap::new();
        for assignment in tests.iter().flat_map(|test| test.initiators.iter().chain(&test.responder)) {
            let Assignment { host, role } = assignment;
            observers.entry(host).or_insert_with(|| Assignment::observer(host, role));
        }
        let role = observers.values().next().map(|observer| observer.role.clone());
        if let Some((server, role)) = self.server(test, hosts).zip(role) {
            observers.insert(server, Assignment::observer(server, &role));
        }
        // The tested host comes first: it is the end that most pairs have.
        let mut n_pairs: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, pair) in pairs {
            let ends = std::iter::once(&pair.from).chain(&pair.to).chain(self.server(test, hosts));
            ends.for_each(|host| *n_pairs.entry(host).or_default() += 1);
        }
        let mut names: Vec<&str> = observers.keys().copied().collect();
        names.sort_by_key(|name| std::cmp::Reverse(n_pairs.get(name).copied()));
        let unwatched = unwatched_hosts(&names, hosts);
        let observers = observers.into_values().filter(|observer| !unwatched.contains(&observer.host)).collect();
        let spared = self.server(test, hosts).cloned().into_iter().collect();
        TrialPlan { round, observers, tests, on_loss: self.plan.plan().on_loss, spared, unwatched }
    }

    /// Returns the host of the run on which the server of a test runs that is not fathom's, unless it was lost.
    fn server(&self, test: &CheckedTest, hosts: &Hosts) -> Option<&String> {
        self.servers.get(test.idx)?.as_ref().filter(|host| hosts.fleet.has(host))
    }

    /// Returns the usual address of a host, if a device on the path of the test translates it.
    fn translated(&self, test: &CheckedTest, host: &str, hosts: &Hosts) -> Option<IpAddr> {
        let path = self.plan.plan().paths.iter().find(|path| test.path.as_ref() == Some(&path.name))?;
        path.translated.iter().any(|one| one == host).then(|| hosts.by_name[host].address)
    }

    /// Returns the options that a role is given.
    fn settings(&self, test: &CheckedTest, options: Settings, host: &str, side: Side) -> Settings {
        let is_elsewhere = self.plan.plan().hosts.get(host).is_some_and(|reach| !reach.is_on_this_machine());
        if is_elsewhere && side == Side::Responder { without_files(test, options) } else { options }
    }

    fn role(&self, test: &CheckedTest, at: &PathHost, host: &str, side: Side, parts: RoleParts) -> Role {
        // Equal seeds would make the arrivals of all pairs coincide.
        let of_pair = u64::try_from(parts.place).unwrap_or_default() << SEED_BITS_OF_ROUNDS;
        Role {
            test: test.name.clone(),
            kind: test.kind.name().to_owned(),
            side,
            settings: parts.settings,
            phases: test.phases,
            address: Some(at.address),
            interface: at.interface.clone(),
            peer: BTreeMap::new(),
            cores: parts.cores,
            meeting: PeerAddresses {
                within: self.allowed_networks(test, host),
                resolved: self.resolved.get(test.idx).cloned().unwrap_or_default(),
                ..PeerAddresses::default()
            },
            seed: self.plan.plan().seed.wrapping_add(u64::from(parts.round)).wrapping_add(of_pair),
        }
    }
}

/// Most counters of a host of a lab are those of the machine, and reading them all five times a second takes a millisecond for each host.
const WATCHED_PER_MACHINE_MAX: usize = 16;

/// The parts of a role that differ from one trial or pair to the next.
struct RoleParts {
    settings: Settings,
    cores: Vec<usize>,
    /// The place of the pair among those of the test.
    place: usize,
    round: u32,
}

/// Rounds use the lower bits of a seed; there are fewer of them.
const SEED_BITS_OF_ROUNDS: u32 = 32;

/// Returns the options for a responder on another machine. Files belong to the initiator's host, so the responder learns only that they
/// are set.
fn without_files(test: &CheckedTest, mut settings: Settings) -> Settings {
    for option in test.kind.options().iter().filter(|option| option.value == ValueKind::File) {
        if settings.text(option.name).is_some() {
            settings.set(option.name, "");
        }
    }
    settings
}

/// Adds to the error of a trial that could not connect its hosts what their links and their counters say about it.
fn explain_unreached(test: &CheckedTest, outcome: &mut TrialOutcome, hosts: &mut Hosts) {
    let (Some(Error::RoleFailed { host, failure }), Some(to)) = (&mut outcome.error, &test.to) else { return };
    let of_host: Vec<&Pair> = test.pairs.iter().filter(|pair| pair.from == *host).collect();
    let names = match of_host.as_slice() {
        [] if test.pairs.is_empty() => [test.from.clone(), to.clone()],
        [Pair { from, to: Some(to) }] => [from.clone(), to.clone()],
        // Of several pairs of a host, the error does not say which one could not connect.
        _ => return,
    };
    // Where the kernel refused something else, as an address that went with its link, only the links tell.
    if failure.causes.is_empty() && !failure.is_between_hosts {
        return;
    }
    let counters = outcome.trials.first().filter(|_| failure.is_between_hosts).map(|trial| trial.hosts.clone());
    // A host that tests itself is both ends, and is asked once.
    let asked: Vec<String> = BTreeSet::from(names.clone()).into_iter().collect();
    let answers = hosts.environments(&asked);
    // A host that does not tell has no facts.
    let environments: BTreeMap<&String, Environment> =
        asked.iter().zip(answers.into_iter().map(Result::unwrap_or_default)).collect();
    let ends = names.each_ref().map(|name| {
        let PathHost { address, interface, .. } = &*hosts.at(name, test.path.as_deref());
        let environment = environments[name].clone();
        let host =
            Host { address: Some(address.to_string()), interface: interface.clone(), environment, ..Host::default() };
        (name.as_str(), host)
    });
    let Some(found) = fathom_analyze::unreached(ends, &counters.unwrap_or_default()) else { return };
    failure.causes.push(found.why);
    if let Some(NextStep { command, on, expected }) = found.next {
        let on = on.map(|host| format!(" on {host}")).unwrap_or_default();
        let expected = expected.map(|expected| format!(", to {expected}")).unwrap_or_default();
        let step = format!("run `{command}`{on}{expected}");
        failure.hint = Some(std::iter::once(step).chain(failure.hint.take()).collect::<Vec<_>>().join("\n"));
    }
}

fn unwatched_note(n: usize) -> Note {
    let text = format!(
        "the counters of {n} hosts were not read, because {WATCHED_PER_MACHINE_MAX} others of the same machine have theirs read"
    );
    Note::new("counters-left-out", text)
}

/// Returns the hosts whose counters are not read, because enough hosts of the same machine before them have theirs read.
fn unwatched_hosts(names: &[&str], hosts: &Hosts) -> BTreeSet<String> {
    let mut n_watched: BTreeMap<&str, usize> = BTreeMap::new();
    let is_extra = |name: &&&str| {
        let machine = hosts.fleet.facts(name).ok().and_then(|facts| facts.boot_id.as_deref());
        machine.is_some_and(|machine| {
            let n = n_watched.entry(machine).or_default();
            *n += 1;
            *n > WATCHED_PER_MACHINE_MAX
        })
    };
    names.iter().filter(is_extra).map(|name| (*name).to_owned()).collect()
}

/// The display of the metric that a test is about while it runs.
struct LiveRate {
    unit: Unit,
    side: Side,
}

impl LiveRate {
    fn of(test: &CheckedTest) -> Self {
        let metrics = test.kind.metrics();
        let headline = test.headline();
        let metric = metrics.iter().find(|metric| headline == Some(&*metric.name)).or(metrics.first());
        match metric.map(|metric| (&metric.from, metric.unit)) {
            Some((Derivation::Rate { side, .. }, unit)) => Self { unit, side: *side },
            Some((Derivation::RateOfBoth { .. }, unit)) => Self { unit, side: Side::Initiator },
            _ => Self { unit: Unit::PerSec, side: Side::Initiator },
        }
    }

    fn per_sec(&self, live: LiveProgress) -> f64 {
        let scale = if self.unit == Unit::BitsPerSec { 8.0 } else { 1.0 };
        approximate(live.growth) * scale / live.span.as_secs_f64()
    }

    fn text(&self, live: LiveProgress) -> String {
        self.unit.show(self.per_sec(live))
    }
}

/// The newest rate of each pair of a trial, and what a terminal shows of them: one line per host.
struct HostsLive {
    /// The host at the end that differs, for each pair.
    hosts: Vec<String>,
    newest: Vec<Option<LivePair>>,
}

#[derive(Clone, Copy)]
struct LivePair {
    at: Nanos,
    per_sec: f64,
    is_measuring: bool,
}

/// Agents report twice a second; two missing reports are worth a word.
const SILENT_AFTER: Nanos = Nanos::from_millis(1_500);

impl HostsLive {
    fn of(test: &CheckedTest, pairs: &[(usize, &Pair)]) -> Self {
        let starts_at_one = test.pairs.windows(2).all(|two| two[0].from == two[1].from);
        let host = |pair: &Pair| pair.to.clone().filter(|_| starts_at_one).unwrap_or_else(|| pair.from.clone());
        let hosts: Vec<String> = pairs.iter().map(|(_, pair)| host(pair)).collect();
        Self { newest: vec![None; hosts.len()], hosts }
    }

    fn add(&mut self, place: usize, at: Nanos, per_sec: f64, is_measuring: bool) {
        if let Some(newest) = self.newest.get_mut(place) {
            *newest = Some(LivePair { at, per_sec, is_measuring });
        }
    }

    fn total(&self) -> f64 {
        self.newest.iter().flatten().map(|pair| pair.per_sec).fold(0.0, |sum, one| sum + one)
    }

    /// Returns each host with its rate and its state, in the order of the pairs.
    fn lines(&self, now: Nanos, unit: Unit) -> Vec<(String, String)> {
        let mut lines: Vec<(String, String)> = Vec::new();
        for host in &self.hosts {
            if lines.iter().any(|(other, _)| other == host) {
                continue;
            }
            let of_host = self.hosts.iter().zip(&self.newest).filter(|(other, _)| *other == host);
            let pairs: Vec<LivePair> = of_host.filter_map(|(_, newest)| *newest).collect();
            let silence = pairs.iter().map(|pair| now.since(pair.at)).max();
            let state = match silence {
                None => "getting ready".to_owned(),
                Some(silence) if silence > SILENT_AFTER => format!("silent for {} s", silence.0 / 1_000_000_000),
                Some(_) if pairs.iter().all(|pair| pair.is_measuring) => "measuring".to_owned(),
                Some(_) => "warming up".to_owned(),
            };
            let rate = unit.show(pairs.iter().map(|pair| pair.per_sec).fold(0.0, |sum, one| sum + one));
            lines.push((host.clone(), format!("{rate:>14}   {state}")));
        }
        lines
    }
}

pub(super) fn progress_line(plan: &CheckedPlan, options: &RunOptions) -> ProgressLine {
    let n_trials = plan.leading_tests().count() * usize::try_from(plan.plan().rounds).unwrap_or(1);
    ProgressLine::of(n_trials, estimate::time_max(plan), options.is_quiet)
}

pub(super) fn new_run_id() -> String {
    store::run_id(&Zoned::now(), clock::wall().0)
}

/// Connects to all hosts, unless a signal arrives before that is done.
pub(super) fn connect(plan: &Plan, signals: &SignalWatch, run_id: &str, allowed: &AllowList) -> anyhow::Result<Hosts> {
    let hosts = Hosts::connect(plan, run_id, allowed, &|| signals.received().is_some());
    check_interrupted(signals)?;
    hosts
}

/// Returns an error if a signal arrived before the first trial.
pub(super) fn check_interrupted(signals: &SignalWatch) -> Result<(), UserError> {
    match signals.received() {
        Some(signal) => Err(UserError::new(Exit::Signalled(signal), "interrupted before anything was measured")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_a_line_with_its_rate_and_a_silent_one_says_so() {
        let hosts = ["c1", "c2", "c1", "c3"].map(str::to_owned).to_vec();
        let mut live = HostsLive { newest: vec![None; hosts.len()], hosts };
        live.add(0, Nanos::from_secs(1), 100.0, true);
        live.add(1, Nanos::from_secs(3), 200.0, false);
        live.add(2, Nanos::from_secs(4), 50.0, true);
        assert!((live.total() - 350.0).abs() < 1e-9);
        let lines = live.lines(Nanos::from_secs(4), Unit::PerSec);
        let told: Vec<(&str, &str)> = lines.iter().map(|(host, text)| (host.as_str(), text.trim())).collect();
        assert_eq!(
            told,
            [("c1", "150 /s   silent for 3 s"), ("c2", "200 /s   warming up"), ("c3", "0 /s   getting ready")]
        );
    }
}
