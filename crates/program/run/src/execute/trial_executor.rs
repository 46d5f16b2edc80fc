//! One trial of a plan: its roles, its duration and its progress display.

use std::collections::BTreeMap;

use fathom_engine::LiveProgress;
use fathom_fleet::{Assignment, Error, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
use fathom_model::{
    Derivation, PeerAddresses, Role, Settings, Side, Unit, ValueKind,
    benchmark::OwnMaximum,
    plan::HostReach,
    units::{Nanos, approximate},
};
use fathom_sys::{clock, policy::ResolvedNames, process::signal::SignalWatch};

use jiff::Zoned;

use super::{
    RunOptions,
    checked_plan::{CheckedPlan, CheckedTest},
    estimate,
};
use crate::{
    exit::{Exit, UserError},
    hosts::Hosts,
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
    pub(super) progress: ProgressLine,
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
        let trial_plan = self.trial_plan(test, round, hosts);
        let rate = LiveRate::of(test);
        self.progress.start_trial(&test.phases);
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
        for (host, losses) in std::mem::take(&mut outcome.unavailable) {
            hosts.add_unavailable(&host, losses);
        }
        outcome
    }

    /// Returns the allowed networks for a test that resolves names again while it runs.
    fn allowed_networks(&self, test: &CheckedTest, host: &str) -> Option<Vec<String>> {
        let is_ours = matches!(self.plan.plan().hosts.get(host), Some(HostReach::This | HostReach::At(_)));
        let is_given = |name: &str| test.options.text(name).is_some_and(|word| word != "once");
        let networks = || self.options.allowed.networks().iter().map(ToString::to_string).collect();
        (is_ours && is_given("url") && is_given("dns")).then(networks)
    }

    /// Assigns the roles of a trial. Both directions use the options and phases of the leading test.
    fn trial_plan(&self, test: &CheckedTest, round: u32, hosts: &Hosts) -> TrialPlan {
        let (from_cores, to_cores) = hosts.cores(&test.from, test.to.as_deref());
        let part = |name: &str, host: &str, side: Side| {
            let place = &hosts.by_name[host];
            let is_elsewhere = self.plan.plan().hosts.get(host).is_some_and(|reach| !reach.is_on_this_machine());
            let settings =
                if is_elsewhere && side == Side::Responder { without_files(test) } else { test.options.clone() };
            // A host uses the same cores in both directions, unless it plays both roles.
            let is_answering = test.to.as_deref() == Some(host) && (test.from != host || side == Side::Responder);
            let role = Role {
                test: name.to_owned(),
                kind: test.kind.name().to_owned(),
                side,
                settings,
                phases: test.phases,
                address: Some(place.address),
                interface: place.interface.clone(),
                peer: BTreeMap::new(),
                cores: if is_answering { to_cores.clone() } else { from_cores.clone() },
                meeting: PeerAddresses {
                    within: self.allowed_networks(test, host),
                    resolved: self.resolved.get(test.idx).cloned().unwrap_or_default(),
                    ..PeerAddresses::default()
                },
                seed: self.plan.plan().seed.wrapping_add(u64::from(round)),
            };
            Assignment { host: host.to_owned(), role, interfaces: place.interface.iter().cloned().collect() }
        };
        let cast = |one: &CheckedTest| TestRoles {
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
            observers: self.plan.plan().via.iter().map(bystander).collect(),
            tests: std::iter::once(test).chain(self.plan.reverse_of(test)).map(cast).collect(),
        }
    }
}

/// Returns the options for a responder on another machine. Files belong to the initiator's host, so the responder learns only that they
/// are set.
fn without_files(test: &CheckedTest) -> Settings {
    let mut settings = test.options.clone();
    for option in test.kind.options().iter().filter(|option| option.value == ValueKind::File) {
        if settings.text(option.name).is_some() {
            settings.set(option.name, "");
        }
    }
    settings
}

/// The display of a test's first metric while it runs.
struct LiveRate {
    unit: Unit,
    side: Side,
}

impl LiveRate {
    fn of(test: &CheckedTest) -> Self {
        let metric = test.kind.metrics().first();
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

pub(super) fn progress_line(plan: &CheckedPlan, surroundings: &RunOptions) -> ProgressLine {
    let n_trials = plan.leading_tests().count() * usize::try_from(plan.plan().rounds).unwrap_or(1);
    ProgressLine::of(n_trials, estimate::time_max(plan), surroundings.is_quiet)
}

pub(super) fn new_run_id() -> String {
    store::run_id(&Zoned::now(), clock::wall().0)
}

/// Returns an error if a signal arrived before the first trial.
pub(super) fn check_interrupted(signals: &SignalWatch) -> Result<(), UserError> {
    match signals.received() {
        Some(signal) => Err(UserError::new(Exit::Signalled(signal), "interrupted before anything was measured")),
        None => Ok(()),
    }
}
