//! What the tool itself sends, measured before a benchmark: into a sink at the other end of a wire that loses nothing.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    Plan, TestPlan, TestRun,
    benchmark::OwnMaximum,
    plan::{LabPlan, Reach},
    units::{Bytes, Nanos, approximate},
};
use fathom_packet::{
    kinds::frames::{LEARNING, LEARNING_WAIT},
    methods::Seen,
};

use super::tester::{seen, test_at};
use crate::execute::{Surroundings, complete, execute};

/// A few thousand frames at any rate that matters.
const DURATION: Nanos = Nanos::from_millis(300);
/// A rate is kept when no more than this was not sent and nothing was lost: less than half of the finest usual precision.
const UNSENT_MAX: f64 = 0.002;
/// Longer than most pauses of a sender that keeps its schedule; one that is too slow falls behind by more before anything is unsent.
const LAG_MAX: Nanos = Nanos::from_millis(5);
/// Flat out a sender is at its end, on its schedule it needs a little room; each attempt takes as much less again.
const SHARE: f64 = 0.85;
/// The longest frame that needs no larger MTU than that of Ethernet.
const ETHERNET: u32 = 1518;
/// At a third of the first attempt something else is wrong.
const ATTEMPTS: u32 = 7;

/// The tool's own maximum by frame size, for the sizes of a plan's benchmarks.
pub(in crate::execute) type OwnMaxima = BTreeMap<u64, OwnMaximum>;

/// Measures the maximum at every size of a plan's benchmarks that this machine sends; nothing without any.
pub(in crate::execute) fn measure(plan: &Plan, surroundings: &Surroundings) -> anyhow::Result<OwnMaxima> {
    let is_sent_here = |test: &&TestPlan| {
        test.benchmark.is_some() && plan.hosts.get(&test.from).is_some_and(Reach::is_on_this_machine)
    };
    let sizes: BTreeSet<u64> = plan.tests.iter().filter(is_sent_here).map(size).collect();
    let mut maxima = OwnMaxima::new();
    let Some(sample) = plan.tests.iter().find(is_sent_here) else { return Ok(maxima) };
    if !surroundings.is_quiet {
        eprintln!("measuring fathom's own maximum first");
    }
    let is_both = plan.tests.iter().any(|test| test.beside.is_some());
    let ways = if is_both { Ways::Both } else { Ways::One };
    let flat_out = |size: &u64| TestPlan { duration: DURATION.exact(), ..flat(sample, *size) };
    for together in play((sizes.iter().map(flat_out).collect(), ways), surroundings)? {
        let sent = approximate(best(&together).offered / together.len() as u64) / DURATION.as_secs_f64();
        if let Some(size) = together[0].options.size("size").filter(|_| sent > 0.0) {
            let own = OwnMaximum { rate: sent * SHARE, flat_out: sent, loss_ratio: 1.0, unsent_ratio: 1.0 };
            maxima.insert(size.0, own);
        }
    }
    for attempt in 1..=ATTEMPTS {
        let open = |(_, own): &(&u64, &OwnMaximum)| !is_kept(own);
        let paced = |(size, own): (&u64, &OwnMaximum)| test_at(&flat_out(size), own.rate);
        let tests: Vec<TestPlan> = maxima.iter().filter(open).map(paced).collect();
        if tests.is_empty() {
            break;
        }
        for together in play((tests, ways), surroundings)? {
            let (seen, size) = (best(&together), together[0].options.size("size").unwrap_or(Bytes(0)).0);
            let Some(own) = maxima.get_mut(&size) else { continue };
            (own.loss_ratio, own.unsent_ratio) = (seen.loss_ratio().unwrap_or(1.0), unsent_ratio(&seen));
            if !is_kept(own) && attempt < ATTEMPTS {
                own.rate *= SHARE;
            }
        }
    }
    // What never came out right is not known.
    maxima.retain(|_, own| own.loss_ratio < 1.0 && own.unsent_ratio < 1.0);
    Ok(maxima)
}

/// Whether all of the rate was sent as it was due, and all of that arrived.
pub(super) fn is_kept(own: &OwnMaximum) -> bool {
    own.loss_ratio <= 0.0 && own.unsent_ratio <= UNSENT_MAX
}

/// The size of a test's frames.
pub(super) fn size(test: &TestPlan) -> u64 {
    test.options.size("size").map_or(64, |size| size.0)
}

fn flat(sample: &TestPlan, size: u64) -> TestPlan {
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
enum Ways {
    One,
    /// Both at once: each end sends what it can beside what it receives.
    Both,
}

/// What was not sent as it was due: what a sender was behind by has left behind the end of the trial.
fn unsent_ratio(seen: &Seen) -> f64 {
    let behind = if seen.lag > LAG_MAX { seen.lag.as_secs_f64() / DURATION.as_secs_f64() } else { 0.0 };
    seen.unsent_ratio().max(behind.min(1.0))
}

/// The trial in which most was sent as it was due, of tests that were made together.
fn best(together: &[TestRun]) -> Seen {
    let n_trials = together.iter().map(|test| test.trials.len()).min().unwrap_or(0);
    let all = (0..n_trials).map(|n| seen(together.iter().map(|test| &test.trials[n])));
    all.min_by(|a, b| unsent_ratio(a).total_cmp(&unsent_ratio(b)).then(b.offered.cmp(&a.offered))).unwrap_or_default()
}

/// Runs tests between two hosts of a lab that is built for them; each three times, as others use the machine too.
///
/// What was made together stands together.
fn play((tests, ways): (Vec<TestPlan>, Ways), surroundings: &Surroundings) -> anyhow::Result<Vec<Vec<TestRun>>> {
    let [from, to] = ["a", "b"].map(str::to_owned);
    let there = |test: &TestPlan| TestPlan { from: from.clone(), to: Some(to.clone()), beside: None, ..test.clone() };
    let back = |test: &TestPlan| TestPlan {
        name: format!("{}, back", test.name),
        from: to.clone(),
        to: Some(from.clone()),
        beside: Some(test.name.clone()),
        ..test.clone()
    };
    let of_each = |test: &TestPlan| match ways {
        Ways::One => vec![there(test)],
        Ways::Both => vec![there(test), back(test)],
    };
    let n_ways = if ways == Ways::Both { 2 } else { 1 };
    // Jumbo frames need a wire that carries them.
    let longest = tests.iter().map(size).max().and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
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
        hosts: [&from, &to].into_iter().map(|name| (name.clone(), Reach::Lab(name.clone()))).collect(),
    };
    complete(&mut plan)?;
    let alone = Surroundings {
        allowed: crate::target::Allowed::default(),
        is_quiet: surroundings.is_quiet,
        is_live: false,
        command: surroundings.command.clone(),
        watcher: None,
    };
    Ok(execute(&plan, &alone)?.run.tests.chunks(n_ways).map(<[TestRun]>::to_vec).collect())
}
