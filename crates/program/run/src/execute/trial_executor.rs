//! One trial of a plan: who plays what, for how long, and what is shown while it runs.

use std::collections::BTreeMap;

use fathom_engine::{LiveProgress, TestKind};
use fathom_fleet::{Assignment, Error, TestRoles, TrialCallbacks, TrialOutcome, TrialPlan};
use fathom_model::{
    Derivation, PeerAddresses, Phases, Plan, Role, Settings, Side, TestPlan, Unit, ValueKind,
    benchmark::OwnMaximum,
    plan::HostReach,
    units::{Nanos, approximate},
};
use fathom_sys::{clock, process::signal::SignalWatch};

use super::RunOptions;
use crate::{hosts::Hosts, progress::ProgressLine, registry, secrets::Secrets};

/// Intervals of a short trial are short, so that there are enough of them to see a warm-up end.
const INTERVAL_MIN: Nanos = Nanos::from_millis(10);
/// Intervals of a long trial: short enough for a plot, long enough to cost nothing.
const INTERVAL_MAX: Nanos = Nanos::from_millis(50);

/// How long a wait goes on at most before a signal is looked for.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(100);

/// The trials of a run under way.
pub(super) struct RunExecutor<'a> {
    pub(super) plan: &'a Plan,
    pub(super) options: &'a RunOptions,
    pub(super) signals: &'a SignalWatch,
    /// What the tool itself sends, by frame size in bytes.
    pub(super) own: &'a BTreeMap<u64, OwnMaximum>,
    pub(super) secrets: &'a Secrets,
    pub(super) progress: ProgressLine,
}

impl RunExecutor<'_> {
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
