//! Chooses the next trial. RFC 9971 leaves the choice to the implementation.
//!
//! Up to three trials, first at the highest load and then at the forwarding rate of the previous trial, give a first estimate. Then each
//! goal is searched in three rounds of increasing precision: first with trials of the initial duration at four times the width, then at
//! twice the width with durations at the geometric mean, and finally as requested. A round covers all goals before the next round begins,
//! so that drift over time affects all of them. Every trial counts for every goal.

use fathom_model::{
    search::Purpose,
    units::{Nanos, approximate, rounded},
};

use super::{
    ControllerInput, ControllerOutput, GoalEnding, GoalResult, LoadClass, SearchGoal, TrialResult, classify,
    conditional_throughput,
};
use crate::search::{LoadLevel, Measurer, SearchEnd, SearchTrialRequest, VOIDS_MAX};

/// The number of rounds per goal. Each round halves the distance between the bounds.
const ROUNDS: i32 = 3;
/// The significant digits of a load: finer than any width, and short in a table.
const DIGITS: f64 = 6.0;
/// The step doubles at most this often. No step changes the load by more than a factor of four.
const DOUBLINGS_MAX: i32 = 12;
/// More loads than any sensible number of halvings; only a target that changes all the time reaches it.
const LOADS_MAX: i32 = 200;

/// Searches for the relevant bounds of all goals.
///
/// # Panics
/// If there is no goal, or if a goal fails [`SearchGoal::check`].
pub fn mlrsearch<M: Measurer>(input: &ControllerInput, measurer: &mut M) -> ControllerOutput<M::Error> {
    assert!(!input.goals.is_empty(), "a search without a goal");
    assert!(input.goals.iter().all(|goal| goal.check().is_ok()), "{:?}", input.goals);
    let mut controller = Controller { input, measurer, loads: Vec::new(), n_done: 0, took: Nanos::ZERO, n_voids: 0 };
    let ended = controller.search().err().unwrap_or(SearchEnd::Done);
    let goals = input.goals.iter().map(|goal| controller.result(goal)).collect();
    ControllerOutput { goals, loads: controller.loads, ended }
}

/// The relevant bounds of a goal (RFC 9971 section 4.8).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bounds {
    lower: Option<LoadLevel>,
    upper: Option<LoadLevel>,
}

struct Controller<'a, M> {
    input: &'a ControllerInput,
    measurer: &'a mut M,
    /// Ascending.
    loads: Vec<(LoadLevel, Vec<TrialResult>)>,
    n_done: u32,
    took: Nanos,
    n_voids: u32,
}

impl<M: Measurer> Controller<'_, M> {
    fn search(&mut self) -> Result<(), SearchEnd<M::Error>> {
        self.look()?;
        let mut order: Vec<usize> = (0..self.input.goals.len()).collect();
        order.sort_by(|a, b| self.input.goals[*a].loss_ratio.total_cmp(&self.input.goals[*b].loss_ratio));
        let mut known = vec![Bounds::default(); order.len()];
        for round in 0..ROUNDS {
            for (place, idx) in order.iter().enumerate() {
                let target = coarser(&self.input.goals[*idx], round);
                // The goals after this one in this round, and all goals in later rounds.
                let later = (round..ROUNDS)
                    .flat_map(|round| order.iter().map(move |idx| (round, *idx)))
                    .skip(place + 1)
                    .map(|(round, idx)| self.cost(&coarser(&self.input.goals[idx], round)));
                let later = later.fold(Nanos::ZERO, |sum, cost| Nanos(sum.0.saturating_add(cost.0)));
                known[*idx] = self.meet(&target, known[*idx], later)?;
            }
        }
        Ok(())
    }

    /// Runs trials at the highest load and then at the forwarding rate of the previous trial, for a first estimate of the throughput.
    fn look(&mut self) -> Result<(), SearchEnd<M::Error>> {
        let durations = self.input.goals.iter().map(|goal| goal.initial_duration);
        let duration = durations.min().unwrap_or(Nanos::ZERO);
        let (max, left) = (self.input.max_load, Nanos::ZERO);
        let mut guess = max;
        for _ in 0..2 {
            let Some(seen) = self.trial(guess, duration, Purpose::Bracket, left)? else { return Ok(()) };
            let forwarded = seen.forwarding_rate.and_then(LoadLevel::new).map(|load| self.bounded(digits(load.get())));
            match forwarded.filter(|load| *load < guess && seen.loss_ratio > 0.0) {
                Some(load) => guess = load,
                None => return Ok(()),
            }
        }
        self.trial(guess, duration, Purpose::Bracket, left).map(drop)
    }

    /// Measures until the bounds of a target are close enough or cannot get closer.
    fn meet(&mut self, target: &SearchGoal, before: Bounds, later: Nanos) -> Result<Bounds, SearchEnd<M::Error>> {
        let mut n_loads = 0;
        let mut last = None;
        loop {
            let bounds = self.bounds(target);
            // A load stays the next one until it is decided.
            let load = match last.filter(|load| self.class(target, *load) == LoadClass::Undecided) {
                Some(load) => load,
                None => match self.next(target, bounds, before, n_loads) {
                    Some(load) if n_loads < LOADS_MAX => load,
                    _ => return Ok(bounds),
                },
            };
            n_loads += i32::from(last != Some(load));
            last = Some(load);
            let left = Nanos(later.0.saturating_add(self.cost(target).0 / 2));
            let purpose = if target.width > self.finest() { Purpose::Narrow } else { Purpose::Confirm };
            self.trial(load, target.final_duration, purpose, left)?;
        }
    }

    fn finest(&self) -> f64 {
        self.input.goals.iter().map(|goal| goal.width).fold(1.0, f64::min)
    }

    /// Returns the next load for a target; `None` if the target is met or if its bound is the minimum or maximum load.
    ///
    /// Outside the known bounds, the step doubles with every load.
    fn next(&self, target: &SearchGoal, bounds: Bounds, before: Bounds, n_loads: i32) -> Option<LoadLevel> {
        let step = target.width * 2_f64.powi(n_loads.min(DOUBLINGS_MAX));
        let up = |load: LoadLevel| self.bounded(digits(load.get() * (1.0 + step.min(3.0))));
        let down = |load: LoadLevel| self.bounded(digits(load.get() * (1.0 - step).max(0.25)));
        match (bounds.lower, bounds.upper) {
            (Some(lower), Some(upper)) => {
                let between = |load: Option<LoadLevel>| load.filter(|load| lower < *load && *load < upper);
                if width(lower, upper) <= target.width {
                    return None;
                }
                // A bound of the previous round is the most likely bound now.
                between(before.lower).or_else(|| between(before.upper)).or_else(|| middle(lower, upper))
            }
            (Some(lower), None) if lower >= self.input.max_load => None,
            (Some(lower), None) => Some(before.upper.filter(|load| *load > lower).unwrap_or_else(|| up(lower))),
            (None, Some(upper)) if upper <= self.input.min_load => None,
            (None, Some(upper)) => Some(before.lower.filter(|load| *load < upper).unwrap_or_else(|| down(upper))),
            (None, None) => match (before.lower, before.upper) {
                (Some(lower), Some(upper)) if width(lower, upper) > target.width => {
                    middle(lower, upper).or(Some(lower))
                }
                (Some(load), _) | (None, Some(load)) => Some(load),
                (None, None) => Some(self.loads.first().map_or(self.input.max_load, |(load, _)| *load)),
            },
        }
    }

    /// Returns the smallest upper bound and the largest lower bound below it.
    fn bounds(&self, goal: &SearchGoal) -> Bounds {
        let class = |(load, trials): &(LoadLevel, Vec<TrialResult>)| (*load, classify(goal, trials));
        let classes: Vec<(LoadLevel, LoadClass)> = self.loads.iter().map(class).collect();
        let upper = classes.iter().find(|(_, class)| *class == LoadClass::UpperBound).map(|(load, _)| *load);
        let is_below = |load: LoadLevel| upper.is_none_or(|upper| load < upper);
        let mut lowers =
            classes.iter().rev().filter(|(load, class)| *class == LoadClass::LowerBound && is_below(*load));
        Bounds { lower: lowers.next().map(|(load, _)| *load), upper }
    }

    fn class(&self, goal: &SearchGoal, load: LoadLevel) -> LoadClass {
        classify(goal, self.trials(load))
    }

    fn trials(&self, load: LoadLevel) -> &[TrialResult] {
        self.loads.iter().find(|(known, _)| *known == load).map_or(&[], |(_, trials)| trials)
    }

    fn bounded(&self, load: Option<LoadLevel>) -> LoadLevel {
        let load = load.unwrap_or(self.input.min_load);
        if load > self.input.max_load {
            self.input.max_load
        } else if load < self.input.min_load {
            self.input.min_load
        } else {
            load
        }
    }

    /// The time for a target if no trial contradicts another: two bounds, each measured until the remaining trials cannot change it.
    fn cost(&self, target: &SearchGoal) -> Nanos {
        let each = target.duration_sum.as_secs_f64() * (1.0 - target.exceed_ratio).max(target.exceed_ratio);
        let n = (each / target.final_duration.as_secs_f64()).ceil().max(1.0);
        let overhead = if self.n_done == 0 { 0 } else { self.took.0 / u64::from(self.n_done) };
        let one = target.final_duration.0.max(overhead.min(target.final_duration.0.saturating_mul(2)));
        Nanos(rounded(2.0 * n * approximate(one)))
    }

    fn trial(
        &mut self,
        load: LoadLevel,
        duration: Nanos,
        purpose: Purpose,
        left: Nanos,
    ) -> Result<Option<TrialResult>, SearchEnd<M::Error>> {
        if self.took.0.saturating_add(duration.0) > self.input.time.0 {
            return Err(SearchEnd::OutOfTime);
        }
        let bounds = self.bounds(&self.input.goals[0]);
        let step = SearchTrialRequest {
            load,
            duration: Some(duration),
            purpose,
            n_done: self.n_done,
            kept: bounds.lower,
            broken: bounds.upper,
            left: Some(Nanos(left.0.saturating_add(duration.0))),
        };
        let seen = self.measurer.measure(&step).map_err(SearchEnd::Failed)?;
        self.n_done += 1;
        // Without a minimum, trials that take no time would never use up the budget.
        self.took += seen.took.max(duration);
        let Some(forwarded) = seen.forwarded else {
            self.n_voids += 1;
            return if self.n_voids >= VOIDS_MAX { Err(SearchEnd::Voids) } else { Ok(None) };
        };
        self.n_voids = 0;
        let (effective, loss_ratio) = (forwarded.effective, forwarded.loss_ratio);
        let result = TrialResult { duration, effective, loss_ratio, forwarding_rate: forwarded.rate };
        let idx = self.loads.partition_point(|(known, _)| *known < load);
        if self.loads.get(idx).is_none_or(|(known, _)| *known != load) {
            self.loads.insert(idx, (load, Vec::new()));
        }
        self.loads[idx].1.push(result);
        Ok(Some(result))
    }

    fn result(&self, goal: &SearchGoal) -> GoalResult {
        let Bounds { lower, upper } = self.bounds(goal);
        let ending = match (lower, upper) {
            (Some(lower), Some(upper)) if width(lower, upper) <= goal.width => GoalEnding::Regular,
            (Some(lower), None) if lower >= self.input.max_load => GoalEnding::MaxLoad,
            (None, Some(upper)) if upper <= self.input.min_load => GoalEnding::MinLoad,
            _ => GoalEnding::Unfinished,
        };
        let forwarded = lower.and_then(|load| conditional_throughput(goal, load, self.trials(load)));
        GoalResult { goal: *goal, ending, lower, upper, conditional_throughput: forwarded }
    }
}

/// The goal as a round searches it: wider and with shorter trials in the first rounds.
fn coarser(goal: &SearchGoal, round: i32) -> SearchGoal {
    let n_later = ROUNDS - 1 - round;
    if n_later == 0 {
        return *goal;
    }
    let share = f64::from(round) / f64::from(ROUNDS - 1);
    let between = |from: Nanos, to: Nanos| {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        Nanos::from_secs_f64(from * (to / from).powf(share))
    };
    let final_duration = between(goal.initial_duration, goal.final_duration);
    SearchGoal {
        final_duration,
        duration_sum: between(goal.initial_duration, goal.duration_sum).max(final_duration),
        width: (goal.width * 2_f64.powi(n_later)).min(0.5),
        ..*goal
    }
}

/// The distance between two bounds, as a share of the upper one.
fn width(lower: LoadLevel, upper: LoadLevel) -> f64 {
    1.0 - lower.per(upper)
}

/// The geometric mean; `None` if it equals one of the bounds.
fn middle(lower: LoadLevel, upper: LoadLevel) -> Option<LoadLevel> {
    digits((lower.get() * upper.get()).sqrt()).filter(|load| lower < *load && *load < upper)
}

/// Rounds a load to a few significant digits.
fn digits(per_second: f64) -> Option<LoadLevel> {
    let scale = 10_f64.powf(DIGITS - 1.0 - per_second.log10().floor());
    LoadLevel::new((per_second * scale).round() / scale)
}
