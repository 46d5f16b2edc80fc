//! What the tool itself sends, measured before a benchmark: into a sink at the other end of a wire that loses nothing.

use std::collections::BTreeMap;

use fathom_model::{
    Plan, TestPlan, TestRun,
    benchmark::OwnMaximum,
    plan::{HostReach, LabPlan},
    units::{Bytes, Nanos, approximate},
};
use fathom_packet::kinds::frames::{LEARNING, LEARNING_WAIT};
use fathom_rfc2544::TrialCounts;

use super::tester::{test_at, trial_counts};
use crate::execute::{FinishedRun, RunOptions, complete};

/// A few thousand frames at any rate that matters.
const DURATION: Nanos = Nanos::from_millis(300);
/// A rate is kept when no more than this was not sent and nothing was lost: less than half of the finest usual precision.
const UNSENT_MAX: f64 = 0.002;
/// Longer than most pauses of a sender that keeps its schedule; one that is too slow falls behind by more before anything is unsent.
const LAG_MAX: Nanos = Nanos::from_millis(5);
/// Flat out a sender is at its end, on its schedule it needs a little room; each attempt takes as much less again.
const RATE_STEP_DOWN: f64 = 0.85;
/// The longest frame that needs no larger MTU than that of Ethernet.
const ETHERNET: u32 = 1518;
/// At a third of the first attempt something else is wrong.
const ATTEMPTS: u32 = 7;

/// Runs a plan to its end.
pub(crate) type Execute = fn(&Plan, &RunOptions) -> anyhow::Result<FinishedRun>;

/// The tool's own maximum by frame size, for the sizes of a plan's benchmarks.
pub(crate) type ToolMaxima = BTreeMap<u64, OwnMaximum>;

/// Measures the maximum at every size of a plan's benchmarks that this machine sends; nothing without any.
pub(crate) fn measure(plan: &Plan, surroundings: &RunOptions, execute: Execute) -> anyhow::Result<ToolMaxima> {
    let is_sent_here = |test: &&TestPlan| {
        test.benchmark.is_some() && plan.hosts.get(&test.from).is_some_and(HostReach::is_on_this_machine)
    };
    let mut sizes: BTreeMap<u64, TrafficDirections> = BTreeMap::new();
    for test in plan.tests.iter().filter(is_sent_here) {
        let ways = sizes.entry(size(test)).or_insert(TrafficDirections::One);
        if plan.tests.iter().any(|other| other.beside.as_ref() == Some(&test.name)) {
            *ways = TrafficDirections::Both;
        }
    }
    let mut maxima = ToolMaxima::new();
    let Some(sample) = plan.tests.iter().find(is_sent_here) else { return Ok(maxima) };
    if !surroundings.is_quiet {
        eprintln!("measuring fathom's own maximum first");
    }
    let flat_out = |size: &u64| TestPlan { duration: DURATION.exact(), ..flat_out_test(sample, *size) };
    let all: Vec<_> = sizes.iter().map(|(size, ways)| (flat_out(size), *ways)).collect();
    for together in run_tests(&all, surroundings, execute)? {
        let sent = approximate(best(&together).offered / together.len() as u64) / DURATION.as_secs_f64();
        if let Some(size) = together[0].options.size("size").filter(|_| sent > 0.0) {
            let (rate, lag_ns) = (sent * RATE_STEP_DOWN, Nanos::ZERO);
            maxima.insert(size.0, OwnMaximum { rate, flat_out: sent, loss_ratio: 1.0, unsent_ratio: 1.0, lag_ns });
        }
    }
    for attempt in 1..=ATTEMPTS {
        let open = |(_, own): &(&u64, &OwnMaximum)| !is_sustained(own);
        let paced = |(size, own): (&u64, &OwnMaximum)| (test_at(&flat_out(size), own.rate), sizes[size]);
        let tests: Vec<(TestPlan, TrafficDirections)> = maxima.iter().filter(open).map(paced).collect();
        if tests.is_empty() {
            break;
        }
        for together in run_tests(&tests, surroundings, execute)? {
            let (seen, size) = (best(&together), together[0].options.size("size").unwrap_or(Bytes(0)).0);
            let Some(own) = maxima.get_mut(&size) else { continue };
            (own.loss_ratio, own.unsent_ratio) = (seen.loss_ratio().unwrap_or(1.0), seen.unsent_ratio());
            own.lag_ns = seen.lag;
            if !is_sustained(own) && attempt < ATTEMPTS {
                own.rate *= RATE_STEP_DOWN;
            }
        }
    }
    // What never came out right is not known.
    maxima.retain(|_, own| own.loss_ratio < 1.0 && own.unsent_ratio < 1.0);
    Ok(maxima)
}

/// Whether all of the rate was sent as it was due, and all of that arrived.
pub(super) fn is_sustained(own: &OwnMaximum) -> bool {
    own.loss_ratio <= 0.0 && own.unsent_ratio <= UNSENT_MAX && own.lag_ns <= LAG_MAX
}

/// The size of a test's frames.
pub(super) fn size(test: &TestPlan) -> u64 {
    test.options.size("size").map_or(64, |size| size.0)
}

fn flat_out_test(sample: &TestPlan, size: u64) -> TestPlan {
    let mut test = sample.clone();
    // The device under test is not in this lab, and neither is the way to it.
    for option in ["mac", LEARNING, LEARNING_WAIT] {
        test.options.0.remove(option);
    }
    test.options.set("size", size.to_string());
    TestPlan {
        name: format!("own maximum, {size} B"),
        benchmark: None,
        warmup: Nanos::ZERO.exact(),
        expect: BTreeMap::new(),
        ..test
    }
}

/// Which way frames go between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrafficDirections {
    One,
    /// Both at once: each end sends what it can beside what it receives.
    Both,
}

/// The trial in which most was sent as it was due, of tests that were made together.
fn best(together: &[TestRun]) -> TrialCounts {
    let n_trials = together.iter().map(|test| test.trials.len()).min().unwrap_or(0);
    let all = (0..n_trials).map(|n| trial_counts(together.iter().map(|test| &test.trials[n])));
    let order = |a: &TrialCounts, b: &TrialCounts| {
        let is_late = |seen: &TrialCounts| seen.lag > LAG_MAX;
        let by_unsent = a.unsent_ratio().total_cmp(&b.unsent_ratio());
        by_unsent.then(is_late(a).cmp(&is_late(b))).then(b.offered.cmp(&a.offered))
    };
    all.min_by(order).unwrap_or_default()
}

/// Runs tests between two hosts of a lab that is built for them; each three times, as others use the machine too.
///
/// What was made together stands together.
fn run_tests(
    tests: &[(TestPlan, TrafficDirections)],
    surroundings: &RunOptions,
    execute: Execute,
) -> anyhow::Result<Vec<Vec<TestRun>>> {
    let [from, to] = ["a", "b"].map(str::to_owned);
    let there = |test: &TestPlan| TestPlan { from: from.clone(), to: Some(to.clone()), beside: None, ..test.clone() };
    let back = |test: &TestPlan| TestPlan {
        name: format!("{}, back", test.name),
        from: to.clone(),
        to: Some(from.clone()),
        beside: Some(test.name.clone()),
        ..test.clone()
    };
    let of_each = |(test, ways): &(TestPlan, TrafficDirections)| match ways {
        TrafficDirections::One => vec![there(test)],
        TrafficDirections::Both => vec![there(test), back(test)],
    };
    // Jumbo frames need a wire that carries them.
    let longest = tests.iter().map(|(test, _)| size(test)).max().and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    let lab = LabPlan { preset: "pair".to_owned(), mtu_bytes: (longest > ETHERNET).then_some(longest), device: None };
    let mut plan = Plan {
        schema: fathom_model::plan::SCHEMA.to_owned(),
        title: "Own maximum".to_owned(),
        rounds: 3,
        until_ci: None,
        seed: 1,
        tests: tests.iter().flat_map(of_each).collect(),
        via: None,
        lab: Some(lab),
        hosts: [&from, &to].into_iter().map(|name| (name.clone(), HostReach::Lab(name.clone()))).collect(),
    };
    complete(&mut plan)?;
    let alone = RunOptions {
        allowed: crate::allow::AllowList::default(),
        is_quiet: surroundings.is_quiet,
        shows_estimate: false,
        is_live: false,
        command: surroundings.command.clone(),
        on_progress: None,
    };
    let mut all: Vec<Vec<TestRun>> = Vec::new();
    for (test, planned) in execute(&plan, &alone)?.run.tests.into_iter().zip(&plan.tests) {
        match all.last_mut().filter(|_| planned.beside.is_some()) {
            Some(together) => together.push(test),
            None => all.push(vec![test]),
        }
    }
    Ok(all)
}
