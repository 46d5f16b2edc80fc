//! Searches of devices with a known loss curve, in virtual time, compared with the bisections of RFC 2544.

use fathom_model::units::{Nanos, approximate, rounded};

use super::{ControllerInput, ControllerOutput, GoalEnding, SearchGoal, mlrsearch};
use crate::search::{
    Forwarded, LoadLevel, Measurer, Observation, SearchEnd, SearchTrialRequest,
    binary::{BinarySearch, BinarySearchState},
    simulated::Noise,
};

/// A device whose loss ratio is a function of the load and the length of a trial.
struct Device<F> {
    loss: F,
    took: Nanos,
    n_trials: u32,
}

impl<F: FnMut(f64, Nanos) -> f64> Device<F> {
    fn new(loss: F) -> Self {
        Self { loss, took: Nanos::ZERO, n_trials: 0 }
    }

    /// Rounds the loss down to whole frames.
    fn lose(&mut self, load: f64, duration: Nanos) -> f64 {
        self.took += duration;
        self.n_trials += 1;
        let offered = load * duration.as_secs_f64();
        ((self.loss)(load, duration) * offered).floor() / offered
    }
}

impl<F: FnMut(f64, Nanos) -> f64> Measurer for Device<F> {
    type Error = &'static str;

    fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, Self::Error> {
        let duration = step.duration.expect("this search says how long");
        let loss_ratio = self.lose(step.load.get(), duration);
        let rate = Some(step.load.get() * (1.0 - loss_ratio));
        let forwarded = Some(Forwarded { loss_ratio, effective: duration, rate });
        Ok(Observation { forwarded, took: duration, ..Observation::default() })
    }
}

fn load(per_second: f64) -> LoadLevel {
    LoadLevel::new(per_second).unwrap()
}

/// The goal of CSIT: 21 s of trials of 1 s, half of which may be lossy.
fn csit(loss_ratio: f64) -> SearchGoal {
    let second = Nanos::from_secs(1);
    SearchGoal { duration_sum: Nanos::from_secs(21), loss_ratio, exceed_ratio: 0.5, ..SearchGoal::rfc2544(second) }
}

fn input(goals: Vec<SearchGoal>) -> ControllerInput {
    ControllerInput { goals, min_load: load(1e3), max_load: load(1e6), time: Nanos::from_secs(1200) }
}

fn ndr_and_pdr() -> ControllerInput {
    input(vec![csit(0.0), csit(0.005)])
}

/// Two bisections as RFC 2544 is usually read: trials of 60 s from the lowest load to the highest, to the same width.
fn bisected(device: &mut Device<impl FnMut(f64, Nanos) -> f64>, input: &ControllerInput) -> Vec<BinarySearchState> {
    let halve = |goal: &SearchGoal, device: &mut Device<_>| {
        let search = |step| BinarySearch { min: 1000, max: 1_000_000, step, max_repeat: 1 };
        let mut lossless =
            |number: u64, _| Ok::<_, ()>(device.lose(approximate(number), Nanos::from_secs(60)) <= goal.loss_ratio);
        // The width is relative to the result; knowing it beforehand favors the bisection.
        let width = rounded(goal.width * LIMIT).max(1);
        search(width).run(&mut lossless).unwrap()
    };
    input.goals.iter().map(|goal| halve(goal, device)).collect()
}

/// The highest load that the devices carry without loss.
const LIMIT: f64 = 412_345.0;

fn sharp(load: f64) -> f64 {
    (1.0 - LIMIT / load).max(0.0)
}

/// Starts to lose slowly at the limit: the loss reaches 0.5 % at 1.17 times the limit.
fn soft(load: f64) -> f64 {
    (load / LIMIT - 1.0).max(0.0).powi(3)
}

/// Whether a goal's bounds enclose a load, to the width of the last digit.
#[track_caller]
fn encloses<E: std::fmt::Debug>(found: &ControllerOutput<E>, idx: usize, truth: (f64, f64)) {
    let goal = &found.goals[idx];
    let (lower, upper) = (goal.lower.unwrap().get(), goal.upper.unwrap().get());
    assert_eq!(goal.ending, GoalEnding::Regular, "{goal:?}");
    assert!(lower <= truth.1 && upper >= truth.0 && 1.0 - lower / upper <= goal.goal.width, "{truth:?}: {goal:?}");
}

#[test]
fn ndr_and_pdr_take_less_than_a_third_of_two_bisections_with_trials_of_60_seconds() {
    type Curve = fn(f64) -> f64;
    // The load where a trial of 1 s loses its first frame, and the load where 0.5 % is lost.
    let soft_ndr = LIMIT * (1.0 + (1.0 / LIMIT).cbrt());
    let soft_pdr = LIMIT * (1.0 + 0.005_f64.cbrt());
    let cases: [(&str, Curve, f64, f64); 2] =
        [("sharp", sharp, LIMIT, LIMIT / 0.995), ("soft", soft, soft_ndr, soft_pdr)];
    for (name, curve, ndr, pdr) in cases {
        let mut device = Device::new(|load, _| curve(load));
        let found = mlrsearch(&ndr_and_pdr(), &mut device);
        assert_eq!(found.ended, SearchEnd::Done);
        encloses(&found, 0, (ndr * 0.999, ndr * 1.001));
        encloses(&found, 1, (pdr * 0.999, pdr * 1.001));
        let mut slow = Device::new(|load, _| curve(load));
        let halved = bisected(&mut slow, &ndr_and_pdr());
        assert!(halved.iter().all(|halved| halved.kept.is_some() && halved.broken.is_some()), "{halved:?}");
        println!("{name}: {} in {} trials against {} in {}", device.took, device.n_trials, slow.took, slow.n_trials);
        assert!(device.took.0 * 3 < slow.took.0, "{name}: {} against {}", device.took, slow.took);
    }
}

#[test]
fn a_noisy_device_has_the_bounds_that_most_of_its_trials_keep() {
    let (mut n_right, mut longest) = (0, Nanos::ZERO);
    for seed in 0..200 {
        let mut noise = Noise(seed);
        // One trial in ten loses up to 2 % of its frames at any load.
        let loss = |load: f64, _| {
            let stray = if noise.uniform() < 0.1 { 0.02 * noise.uniform() } else { 0.0 };
            (sharp(load) + stray).min(1.0)
        };
        let mut device = Device::new(loss);
        let found = mlrsearch(&ndr_and_pdr(), &mut device);
        let is_right = |idx: usize, truth: f64| {
            let goal = &found.goals[idx];
            let contains =
                |lower: LoadLevel, upper: LoadLevel| lower.get() <= truth * 1.001 && upper.get() >= truth * 0.999;
            goal.ending == GoalEnding::Regular && goal.lower.zip(goal.upper).is_some_and(|(l, u)| contains(l, u))
        };
        n_right += usize::from(is_right(0, LIMIT) && is_right(1, LIMIT / 0.995));
        longest = longest.max(device.took);
    }
    println!("{n_right} of 200 right, the longest search {longest}");
    assert!(n_right >= 195, "{n_right} of 200");
    // Two bisections take 18 trials of 60 s.
    assert!(longest < Nanos::from_secs(360), "{longest}");
}

#[test]
fn the_goal_of_rfc_2544_is_searched_with_short_trials_and_decided_by_full_length_ones() {
    let goal = SearchGoal::rfc2544(Nanos::from_secs(60));
    let mut device = Device::new(|load, _| sharp(load));
    let found = mlrsearch(&input(vec![goal]), &mut device);
    encloses(&found, 0, (LIMIT, LIMIT));
    let lower = found.goals[0].lower.unwrap();
    let (_, trials) = found.loads.iter().find(|(load, _)| *load == lower).unwrap();
    assert!(trials.iter().any(|trial| trial.duration == Nanos::from_secs(60) && trial.loss_ratio == 0.0));
    assert_eq!(found.goals[0].conditional_throughput, Some(lower.get()));
    assert!(device.took < Nanos::from_secs(360), "{}", device.took);
}

#[test]
fn a_limit_beyond_the_loads_that_are_allowed_is_an_irregular_result() {
    let mut clean = Device::new(|_, _| 0.0);
    let above = mlrsearch(&ndr_and_pdr(), &mut clean);
    for goal in &above.goals {
        assert_eq!((goal.ending, goal.lower, goal.upper), (GoalEnding::MaxLoad, Some(load(1e6)), None));
        assert_eq!(goal.conditional_throughput, Some(1e6));
    }
    assert!(clean.took < Nanos::from_secs(30), "{}", clean.took);
    let below = mlrsearch(&ndr_and_pdr(), &mut Device::new(|_, _| 0.5));
    for goal in &below.goals {
        assert_eq!((goal.ending, goal.lower, goal.upper), (GoalEnding::MinLoad, None, Some(load(1e3))));
        assert_eq!(goal.conditional_throughput, None);
    }
}

#[test]
fn a_load_that_loses_less_than_a_lower_one_does_not_raise_the_lower_bound() {
    // The device loses frames between 100,000 and 200,000, and none between there and 500,000.
    let inverted = |load: f64, _| if (1e5..2e5).contains(&load) || load > 5e5 { 0.1 } else { 0.0 };
    let found = mlrsearch(&ndr_and_pdr(), &mut Device::new(inverted));
    let class = |goal: &super::GoalResult| (goal.lower.unwrap().get(), goal.upper.unwrap().get());
    for goal in &found.goals {
        let (lower, upper) = class(goal);
        assert!(lower < upper && (upper <= 2e5 || lower <= 5e5), "{goal:?}");
        let lossy = found.loads.iter().filter(|(load, _)| (1e5..2e5).contains(&load.get()));
        let is_upper =
            |(_, trials): &&(LoadLevel, Vec<_>)| super::classify(&goal.goal, trials) == super::LoadClass::UpperBound;
        assert!(lossy.filter(is_upper).all(|(load, _)| load.get() >= upper), "{goal:?}");
    }
}

#[test]
fn a_search_keeps_to_its_time_and_tells_what_it_knows() {
    for secs in [1, 5, 20, 30] {
        let brief = ControllerInput { time: Nanos::from_secs(secs), ..ndr_and_pdr() };
        let mut device = Device::new(|load, _| sharp(load));
        let found = mlrsearch(&brief, &mut device);
        assert_eq!(found.ended, SearchEnd::OutOfTime);
        assert!(device.took <= Nanos::from_secs(secs), "{}", device.took);
        assert!(found.goals.iter().any(|goal| goal.ending == GoalEnding::Unfinished), "{:?}", found.goals);
        assert!(found.goals.iter().all(|goal| goal.lower.is_none_or(|lower| lower.get() <= LIMIT / 0.995)));
    }
}

#[test]
fn trials_that_fail_or_say_nothing_end_a_search_and_keep_what_is_known() {
    struct Failing<F>(Device<F>, u32, Option<&'static str>);
    impl<F: FnMut(f64, Nanos) -> f64> Measurer for Failing<F> {
        type Error = &'static str;

        fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, Self::Error> {
            match self.2 {
                _ if step.n_done < self.1 => self.0.measure(step),
                Some(error) => Err(error),
                None => Ok(Observation { took: Nanos::from_secs(1), ..Observation::default() }),
            }
        }
    }
    for (error, ended) in [(Some("ctrl-C"), SearchEnd::Failed("ctrl-C")), (None, SearchEnd::Voids)] {
        let found = mlrsearch(&ndr_and_pdr(), &mut Failing(Device::new(|load, _| sharp(load)), 28, error));
        assert_eq!(found.ended, ended);
        assert_eq!(found.loads.iter().map(|(_, trials)| trials.len()).sum::<usize>(), 28);
        assert!(found.goals[0].lower.is_some() || found.goals[0].upper.is_some());
    }
}

#[test]
fn goals_that_make_no_sense_are_told_apart() {
    use super::GoalError::{Duration, Ratio, Width};
    let good = csit(0.005);
    let cases = [
        (good, Ok(())),
        (SearchGoal { loss_ratio: 1.0, ..good }, Err(Ratio)),
        (SearchGoal { exceed_ratio: -0.1, ..good }, Err(Ratio)),
        (SearchGoal { loss_ratio: f64::NAN, ..good }, Err(Ratio)),
        (SearchGoal { width: 0.0, ..good }, Err(Width)),
        (SearchGoal { initial_duration: Nanos::ZERO, ..good }, Err(Duration)),
        (SearchGoal { duration_sum: Nanos::from_millis(999), ..good }, Err(Duration)),
        (SearchGoal::tst009(Nanos::from_millis(100)), Ok(())),
    ];
    for (goal, expected) in cases {
        assert_eq!(goal.check(), expected, "{goal:?}");
    }
}
