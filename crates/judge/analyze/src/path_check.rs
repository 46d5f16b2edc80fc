//! Whether a trial of a compared path may give a number: its packets went the way that the path says, to the end of the trial.

use fathom_model::{
    Derivation, Metric, Record, Run, Side, TestPlan, TestRun, Trial,
    names::host::{CONNTRACK_ENTRIES, DEV_RX_FRAMES, DEV_TX_FRAMES},
    plan::{HostReach, PathPlan},
    record::Series,
    units::{approximate, grouped},
};

use crate::{
    path::{hosts_of, place_on_path},
    window::{MeasuredWindow, rates, record_of},
};

/// A device takes part in a path if it took at least this part of the frames that the initiator sent. On another path it sees less: with
/// large frames on one side of it and small ones on the other, the two counts can differ by an order of magnitude.
const TAKES_PART: f64 = 0.1;
/// It takes part in one that leads past it only if it took this part of them: frames of others come to each of its interfaces.
const TAKES_MOST: f64 = 0.3;
/// With fewer frames, those of other programs and of neighbor discovery would decide.
const FRAMES_MIN: u64 = 50;
/// A path that carries nothing in so many tenths of the measured time, at its end, may have been cut.
const CUT_TENTHS: usize = 3;
/// Fewer intervals can be empty at a low rate.
const INTERVALS_MIN: usize = 3;

/// Returns the path that a test takes.
pub(crate) fn path_of<'a>(run: &'a Run, test: &TestRun) -> Option<&'a PathPlan> {
    let name = test.path.as_ref()?;
    run.plan.paths.iter().find(|path| path.name == *name)
}

/// Returns the device between the two ends of a test: that of its path, or of the plan.
pub(crate) fn device_of<'a>(run: &'a Run, test: &TestRun) -> Option<&'a str> {
    match path_of(run, test) {
        Some(path) => path.via.as_deref(),
        None => run.plan.via.as_deref(),
    }
}

/// Returns true if the counters that a device prints are of a test: of each one that is not on the path without the device.
pub(crate) fn is_device_counted(run: &Run, test: &TestRun) -> bool {
    if run.plan.via.is_some() {
        return device_of(run, test).is_some();
    }
    // Nobody says which path leads through the device, so it is each one but the reference.
    reference_of(run, test).is_none_or(|reference| reference.path != test.path)
}

/// Returns the first test of the comparison of a test.
fn reference_of<'a>(run: &'a Run, test: &TestRun) -> Option<&'a TestPlan> {
    let planned = run.plan.tests.iter().find(|planned| planned.name == test.name)?;
    let comparison = planned.comparison.as_ref()?;
    run.plan.tests.iter().find(|planned| planned.comparison.as_ref() == Some(comparison))
}

/// Returns the reason why a trial of a path gives no number, in one sentence. `None` if all preconditions hold.
#[must_use]
pub fn path_fault(run: &Run, test: &TestRun, trial: &Trial, main: Option<&Metric>) -> Option<String> {
    let path = path_of(run, test)?;
    cut_off(path, trial, main).or_else(|| wrong_way(run, test, path, trial)).or_else(|| tracked(run, test, path, trial))
}

/// Compares the frames that the device took with those that the initiator sent.
fn wrong_way(run: &Run, test: &TestRun, path: &PathPlan, trial: &Trial) -> Option<String> {
    let device = run.plan.via.as_deref()?;
    let initiator = hosts_of(test).next()?;
    let interface = place_on_path(run, test, initiator).1?;
    let sent = trial.hosts.get(initiator)?.growth(DEV_TX_FRAMES, interface)?;
    // The frames of a host come to one interface of the device.
    let taken = trial.hosts.get(device)?.series_of(DEV_RX_FRAMES).map(Series::growth).max()?;
    if sent < FRAMES_MIN {
        return None;
    }
    // Frames of others come to a device all the time, and are not as many.
    let least = if path.via.is_some() { TAKES_PART } else { TAKES_MOST };
    let takes_part = approximate(taken) >= least * approximate(sent);
    let (name, counts) = (&path.name, format!("it took {} frames of the {} sent", grouped(taken), grouped(sent)));
    match (path.via.is_some(), takes_part) {
        (true, false) => Some(format!("the path `{name}` does not go through {device}: {counts}")),
        (false, true) if run.plan.paths.iter().any(|other| other.via.is_some()) => {
            Some(format!("both paths go through {device}: on `{name}` {counts}"))
        }
        _ => None,
    }
}

fn cut_off(path: &PathPlan, trial: &Trial, main: Option<&Metric>) -> Option<String> {
    let is_nothing = has_carried_nothing(trial, main);
    is_nothing.then(|| format!("the path `{}` carried nothing in round {}", path.name, trial.round + 1))
}

/// Returns true if nothing arrived on any side in a trial, the warm-up included: the count of its rate is 0. An answer may be missing where
/// the question arrived.
#[must_use]
pub fn has_carried_nothing(trial: &Trial, main: Option<&Metric>) -> bool {
    let Some(Derivation::Rate { side, counter }) = main.map(|metric| &metric.from) else { return false };
    let count = |(_, record): (&str, &Record)| record.totals.get(counter.as_ref()).copied();
    let mut counted = [Side::Initiator, Side::Responder].into_iter().filter_map(|side| count(record_of(trial, side)?));
    record_of(trial, *side).and_then(count).is_some() && counted.all(|n| n == 0)
}

/// Returns true if nothing arrived in the last part of the measured time of a trial. A single flow may wait for a retransmission, so that alone
/// does not show that the path is dead.
#[must_use]
pub fn ends_in_silence(run: &Run, trial: &Trial, main: Option<&Metric>) -> bool {
    let counted = main.and_then(|metric| match &metric.from {
        Derivation::Rate { side, counter } => Some((record_of(trial, *side)?, counter)),
        _ => None,
    });
    let Some(((host, record), counter)) = counted else { return false };
    let Some(window) = MeasuredWindow::common(trial, &run.hosts) else { return false };
    let rates = rates(&record.timeline, counter, window.in_record(&run.hosts, host, record));
    let n_empty = rates.iter().rev().take_while(|rate| **rate <= 0.0).count();
    n_empty >= INTERVALS_MIN && n_empty * 10 >= rates.len() * CUT_TENTHS
}

/// Looks for connection tracking at the ends on the path without the device: rules of the device work there.
fn tracked(run: &Run, test: &TestRun, path: &PathPlan, trial: &Trial) -> Option<String> {
    if !is_without_device(run, test) || !may_have_rules_of_device(run) {
        return None;
    }
    let (host, n) = tracking_end(run, trial)?;
    Some(format!("rules work on the path `{}` too: {host} tracks its connections ({} more)", path.name, grouped(n)))
}

/// Returns true if the device may have rules on the ends, and their owner has none: it has commands, or they are hosts of a lab.
fn may_have_rules_of_device(run: &Run) -> bool {
    let is_set = run.plan.comparisons.iter().any(|comparison| comparison.set.is_some());
    is_set || !run.plan.device.is_default() || run.plan.hosts.values().any(HostReach::is_of_lab)
}

/// Returns true if the test is on the path that the others of its comparison are compared with.
fn is_without_device(run: &Run, test: &TestRun) -> bool {
    reference_of(run, test).is_some_and(|reference| reference.path == test.path)
}

/// Returns an end that tracked more connections in a trial than before it, and how many more.
pub(crate) fn tracking_end<'a>(run: &Run, trial: &'a Trial) -> Option<(&'a str, u64)> {
    let is_end = |name: &&String| run.plan.via.as_ref() != Some(*name);
    trial.hosts.iter().filter(|(name, _)| is_end(name)).find_map(|(name, record)| {
        let entries = record.series_of(CONNTRACK_ENTRIES).next()?;
        let most = entries.values.iter().max()?.saturating_sub(*entries.values.first()?);
        (most > 0).then_some((name.as_str(), most))
    })
}
