//! The tool's own maximum, measured before a benchmark: it sends into a sink over a link without loss.

use std::collections::BTreeMap;

use fathom_fleet::ErrorClass;
use fathom_model::{
    DeviceCommands, Plan, TestPlan, Trial,
    benchmark::{OwnMaximum, TrafficUnit},
    plan::{HostReach, LabPlan},
    units::{Nanos, approximate},
};
use fathom_packet::kinds::frames::{LEARNING, LEARNING_WAIT};
use fathom_rfc2544::TrialCounts;
use fathom_sys::process::signal::SignalWatch;

use super::tester::{exact_rate, trial_counts};
use crate::{
    execute::{
        RunOptions,
        checked_plan::{CheckedPlan, CheckedTest},
        device_commands::DeviceControl,
        trial_executor::{RunExecutor, check_interrupted, connect, new_run_id, progress_line},
    },
    hosts::fleet_error,
    secrets::Secrets,
};

/// The duration of a trial: a few thousand frames at any relevant rate.
const DURATION: Nanos = Nanos::from_millis(300);
/// The largest unsent share at a sustained rate, which also has no loss: less than half of the finest usual precision.
const UNSENT_MAX: f64 = 0.002;
/// The largest lag at a sustained rate: longer than most pauses of a sender that keeps its schedule. A sender that is too slow falls
/// behind by more before any frame is unsent.
const LAG_MAX: Nanos = Nanos::from_millis(5);
/// The factor from the flat-out rate to the first attempt, and from each attempt to the next. A sender on a schedule needs some
/// headroom below its flat-out rate.
const RATE_STEP_DOWN: f64 = 0.85;
/// The longest frame in bytes that fits the standard Ethernet MTU.
const ETHERNET: u32 = 1518;
/// The last attempt runs at a third of the flat-out rate. If that fails, something else is wrong.
const ATTEMPTS: u32 = 7;

/// The tool's own maximum by frame size in bytes, for the frame sizes of a plan's benchmarks.
pub(crate) type ToolMaxima = BTreeMap<u64, OwnMaximum>;

/// Measures the maximum at each frame size that this machine sends in a plan's benchmarks. This is the first stage of such a run.
pub(crate) fn measure(plan: &CheckedPlan, options: &RunOptions, signals: &SignalWatch) -> anyhow::Result<ToolMaxima> {
    let is_sent_here =
        |test: &&CheckedTest| plan.plan().hosts.get(&test.from).is_some_and(HostReach::is_on_this_machine);
    let mut sizes: BTreeMap<u64, TrafficDirections> = BTreeMap::new();
    for test in plan.tests.iter().filter(is_sent_here) {
        let Some(spec) = test.benchmark() else { continue };
        let directions = sizes.entry(spec.size_bytes).or_insert(TrafficDirections::One);
        if test.reverse.is_some() {
            *directions = TrafficDirections::Both;
        }
    }
    let mut maxima = ToolMaxima::new();
    let sample = plan.tests.iter().filter(is_sent_here).find(|test| test.benchmark().is_some());
    let Some(sample) = sample else { return Ok(maxima) };
    if !options.is_quiet {
        eprintln!("measuring fathom's own maximum first");
    }
    let unit = sample.benchmark().map_or(TrafficUnit::Frames, |spec| spec.support.unit);
    let sample = &plan.plan().tests[sample.idx];
    let trial = |size: &u64, rate: Option<f64>| SizeTrial { size: *size, unit, directions: sizes[size], rate };
    let run = |trials: &[SizeTrial]| run_trials(trials, sample, options, signals);
    let flat_out: Vec<SizeTrial> = sizes.keys().map(|size| trial(size, None)).collect();
    for (size, counts) in run(&flat_out)? {
        let n_directions = if sizes[&size] == TrafficDirections::Both { 2 } else { 1 };
        let sent = approximate(counts.offered / n_directions) / DURATION.as_secs_f64();
        if sent > 0.0 {
            let (rate, lag_ns) = (sent * RATE_STEP_DOWN, Nanos::ZERO);
            maxima.insert(size, OwnMaximum { rate, flat_out: sent, loss_ratio: 1.0, unsent_ratio: 1.0, lag_ns });
        }
    }
    for attempt in 1..=ATTEMPTS {
        let open = maxima.iter().filter(|(_, own)| !is_sustained(own));
        let paced: Vec<SizeTrial> = open.map(|(size, own)| trial(size, Some(own.rate))).collect();
        if paced.is_empty() {
            break;
        }
        for (size, counts) in run(&paced)? {
            let Some(own) = maxima.get_mut(&size) else { continue };
            (own.loss_ratio, own.unsent_ratio) = (counts.loss_ratio().unwrap_or(1.0), counts.unsent_ratio());
            own.lag_ns = counts.lag;
            if !is_sustained(own) && attempt < ATTEMPTS {
                own.rate *= RATE_STEP_DOWN;
            }
        }
    }
    // Removes the maxima that no trial on a schedule has measured.
    maxima.retain(|_, own| own.loss_ratio < 1.0 && own.unsent_ratio < 1.0);
    Ok(maxima)
}

/// Returns true if the frames were sent on schedule and none was lost.
pub(super) fn is_sustained(own: &OwnMaximum) -> bool {
    own.loss_ratio <= 0.0 && own.unsent_ratio <= UNSENT_MAX && own.lag_ns <= LAG_MAX
}

/// A trial at one frame size.
struct SizeTrial {
    /// In bytes.
    size: u64,
    unit: TrafficUnit,
    directions: TrafficDirections,
    /// Frames per second, or none for flat out.
    rate: Option<f64>,
}

/// The directions of the frames between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficDirections {
    One,
    /// Both at once: each end sends at its maximum while it receives.
    Both,
}

/// Returns the counts of the round with the fewest unsent frames; ties go to the round without lag, then to the most frames. A round
/// has the trials of all directions.
fn best(rounds: &[Vec<Trial>]) -> TrialCounts {
    let order = |a: &TrialCounts, b: &TrialCounts| {
        let is_late = |counts: &TrialCounts| counts.lag > LAG_MAX;
        let by_unsent = a.unsent_ratio().total_cmp(&b.unsent_ratio());
        by_unsent.then(is_late(a).cmp(&is_late(b))).then(b.offered.cmp(&a.offered))
    };
    rounds.iter().map(trial_counts).min_by(order).unwrap_or_default()
}

/// Runs trials with the options of `sample` in a separate lab, three times each, since other programs may use the machine too.
fn run_trials(
    trials: &[SizeTrial],
    sample: &TestPlan,
    options: &RunOptions,
    signals: &SignalWatch,
) -> anyhow::Result<Vec<(u64, TrialCounts)>> {
    let hosts = ["a", "b"];
    let mtu_bytes = trials.iter().filter_map(SizeTrial::mtu).max();
    let lab = LabPlan { preset: "pair".to_owned(), mtu_bytes, device: None, direct_wire: false };
    let plan = CheckedPlan::new(Plan {
        schema: fathom_model::plan::SCHEMA.to_owned(),
        title: "Own maximum".to_owned(),
        rounds: 3,
        until_ci: None,
        prove: false,
        seed: 1,
        tests: trials.iter().flat_map(|trial| trial.tests(sample, hosts)).collect(),
        via: None,
        paths: Vec::new(),
        comparisons: Vec::new(),
        device: DeviceCommands::default(),
        groups: BTreeMap::new(),
        on_loss: fathom_model::OnLoss::Fail,
        heads: None,
        lab: Some(lab),
        hosts: hosts.map(|name| (name.to_owned(), HostReach::Lab(name.to_owned()))).into(),
    })?;
    let counted = run_unkept(&plan, options, signals)?;
    Ok(trials.iter().zip(counted).map(|(trial, rounds)| (trial.size, best(&rounds))).collect())
}

impl SizeTrial {
    /// Returns the MTU that jumbo frames need. The kernel divides large datagrams by itself.
    fn mtu(&self) -> Option<u32> {
        let size = u32::try_from(self.size).ok()?;
        (self.unit == TrafficUnit::Frames && size > ETHERNET).then_some(size)
    }

    /// Returns the test from the first host to the second, and the test back if both directions run at once.
    fn tests(&self, sample: &TestPlan, [from, to]: [&str; 2]) -> Vec<TestPlan> {
        let mut options = sample.options.clone();
        // The device under test is not in this lab, so its MAC address and the learning frames are removed.
        for option in ["mac", LEARNING, LEARNING_WAIT] {
            options.0.remove(option);
        }
        options.set("size", self.size.to_string());
        if let Some(rate) = self.rate {
            options.set("rate", exact_rate(rate));
        }
        let there = TestPlan {
            name: format!("own maximum, {} B", self.size),
            kind: sample.kind.clone(),
            from: from.to_owned(),
            to: Some(to.to_owned()),
            paired_with: None,
            topology: None,
            each: false,
            optional: false,
            warmup: Nanos::ZERO.exact(),
            duration: DURATION.exact(),
            options,
            search: None,
            benchmark: None,
            path: None,
            comparison: None,
            events: Vec::new(),
            afterwards: Vec::new(),
            expect: BTreeMap::new(),
        };
        let back = TestPlan {
            name: format!("{}, back", there.name),
            from: to.to_owned(),
            to: Some(from.to_owned()),
            paired_with: Some(there.name.clone()),
            topology: None,
            each: false,
            ..there.clone()
        };
        match self.directions {
            TrafficDirections::One => vec![there],
            TrafficDirections::Both => vec![there, back],
        }
    }
}

/// Runs the rounds of a plan only for their counts. Saves and analyzes nothing.
///
/// Returns the trials by leading test, round and direction, without failed trials.
fn run_unkept(plan: &CheckedPlan, options: &RunOptions, signals: &SignalWatch) -> anyhow::Result<Vec<Vec<Vec<Trial>>>> {
    let mut hosts = connect(plan.plan(), signals, &new_run_id(), &options.allowed)?;
    let executor = RunExecutor {
        plan,
        options,
        signals,
        own: &BTreeMap::new(),
        secrets: &Secrets::default(),
        resolved: &[],
        servers: &[],
        unread: &[],
        event_places: &[],
        progress: progress_line(plan, options),
        lost: std::cell::RefCell::default(),
        device: DeviceControl::new(&DeviceCommands::default(), None),
    };
    let mut trials: Vec<Vec<Vec<Trial>>> = plan.leading_tests().map(|_| Vec::new()).collect();
    let mut failed = None;
    for round in 0..plan.plan().rounds {
        for (test, trials) in plan.leading_tests().zip(&mut trials) {
            executor.progress.begin_test(&test.name, round);
            let outcome = executor.run_trial(test, round, &mut hosts);
            executor.progress.end_trial();
            match outcome.error {
                None => trials.push(outcome.trials),
                Some(error) if error.class() == ErrorClass::Incomplete => {
                    check_interrupted(signals)?;
                    return Err(fleet_error(&error).into());
                }
                Some(error) => failed = Some(error),
            }
        }
    }
    executor.progress.clear();
    hosts.close()?;
    match failed {
        Some(error) if trials.iter().all(Vec::is_empty) => Err(fleet_error(&error).into()),
        _ => Ok(trials),
    }
}
