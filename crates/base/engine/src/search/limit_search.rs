//! The steps of a search: bracket, narrow, confirm, draw the curve.

use fathom_model::{
    search::{Ending, Purpose, Vote},
    units::{Nanos, approximate},
};
use fathom_statistics::Votes;

use super::{Certainty, LoadLevel, LoadPoint, Measurer, SearchAim, SearchResult, SearchTrialRequest, VOIDS_MAX};

/// The factor to the next load while no broken load is known. It is small because overload costs a target more than an extra step.
const UP: f64 = 2.0;
/// The divisor below a broken first load. It is larger because the distance down to the limit is unknown.
const DOWN: f64 = 4.0;
/// While bracketing and narrowing, a load is decided by a lead of two votes, so that one stray vote decides nothing.
const LEAD: u32 = 2;
/// The end of the doubling is decided by a lead of three, because two stray votes in a row would misdirect the rest of the search.
const LEAD_FIRST: u32 = 3;
/// While narrowing, a load that is undecided after this many votes is near the limit, which is good enough.
const LED_MAX: u32 = 7;
/// From this many votes on, an end without evidence for either side is given up for one further out.
const CONFIRM_MIN: u32 = 16;
/// An end that is unconfirmed after this many votes is given up too: with more than one stray in five, it would take too long.
const CONFIRM_MAX: u32 = 60;
/// After giving up this many ends, each further out, the cause is not a blurred limit: trials fail at any load.
const GIVEN_UP_MAX: u32 = 6;
/// The share of the allowed error for the first claim about each end. With it, six or seven agreeing votes are enough.
const FIRST_CLAIM: f64 = 0.35;
/// The number of rounds to narrow the gap again after an end turned out to be on the wrong side.
const ROUNDS_MAX: u32 = 3;
/// A load of the curve is skipped if a measured load is this close to it.
const NEAR: f64 = 0.05;

/// Searches for the highest load that meets the objective.
pub fn search<M: Measurer>(aim: &SearchAim, measurer: &mut M) -> SearchResult<M::Error> {
    let mut search =
        LimitSearch { aim, measurer, points: Vec::new(), n_done: 0, took: Nanos::ZERO, n_voids: 0, claims: Vec::new() };
    let mut ends = LoadInterval::default();
    let outcome = search.find(&mut ends);
    if outcome.is_err() {
        search.widen(&mut ends);
    }
    let (ending, error) = match outcome {
        Ok(ending) => (ending, search.draw(ends.kept).err().and_then(SearchStop::error)),
        Err(SearchStop::Budget) => (Ending::OutOfBudget, None),
        Err(SearchStop::Unsettled) => (Ending::Unsettled, None),
        Err(SearchStop::Voids) => (Ending::Stopped, None),
        Err(SearchStop::Failed(error)) => (Ending::Stopped, Some(error)),
    };
    SearchResult { ending, kept: ends.kept, broken: ends.broken, sure: ends.sure, points: search.points, error }
}

/// The reason why the search stops making trials.
enum SearchStop<E> {
    Budget,
    Unsettled,
    Voids,
    Failed(E),
}

impl<E> SearchStop<E> {
    fn error(self) -> Option<E> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Budget | Self::Unsettled | Self::Voids => None,
        }
    }
}

/// The current interval.
struct LoadInterval {
    kept: Option<LoadLevel>,
    broken: Option<LoadLevel>,
    sure: (Certainty, Certainty),
}

impl Default for LoadInterval {
    fn default() -> Self {
        Self { kept: None, broken: None, sure: (Certainty::Likely, Certainty::Likely) }
    }
}

/// The result of the votes on a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VoteResult {
    Kept,
    Broken,
    Open,
}

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntervalEnd {
    Kept,
    Broken,
}

struct LimitSearch<'a, M> {
    aim: &'a SearchAim,
    measurer: &'a mut M,
    /// Ascending by load.
    points: Vec<LoadPoint>,
    n_done: u32,
    took: Nanos,
    n_voids: u32,
    /// The loads to confirm, each with its share of the allowed error.
    claims: Vec<(LoadLevel, f64)>,
}

impl<M: Measurer> LimitSearch<'_, M> {
    fn find(&mut self, ends: &mut LoadInterval) -> Result<Ending, SearchStop<M::Error>> {
        self.bracket(ends)?;
        for _ in 0..ROUNDS_MAX {
            self.narrow(ends)?;
            let turned = self.confirm(ends)?;
            let gap = match (ends.kept, ends.broken) {
                (Some(kept), Some(broken)) => broken.per(kept),
                _ => 1.0,
            };
            if !turned || gap <= (1.0 + self.aim.precision).powi(3) {
                break;
            }
        }
        Ok(match (ends.kept, ends.broken) {
            (Some(_), Some(_)) => Ending::Found,
            (Some(_), None) => Ending::AllKept,
            (None, _) => Ending::AllBroken,
        })
    }

    /// Goes up while loads pass, or down while they fail, until both ends are known or a bound is reached.
    fn bracket(&mut self, ends: &mut LoadInterval) -> Result<(), SearchStop<M::Error>> {
        let mut load = self.aim.start;
        loop {
            match self.first_look(load, ends)? {
                VoteResult::Kept => {
                    ends.kept = Some(load);
                    if ends.broken.is_some() || load >= self.aim.high {
                        return Ok(());
                    }
                    load = self.bounded(load.times(UP));
                }
                VoteResult::Broken | VoteResult::Open => {
                    ends.broken = Some(load);
                    if ends.kept.is_some() || load <= self.aim.low {
                        return Ok(());
                    }
                    load = self.bounded(load.times(1.0 / DOWN));
                }
            }
        }
    }

    fn bounded(&self, load: LoadLevel) -> LoadLevel {
        if load > self.aim.high {
            self.aim.high
        } else if load < self.aim.low {
            self.aim.low
        } else {
            load
        }
    }

    /// Accepts a single passing vote, because a later step would notice an error in it; a failing vote needs a lead.
    fn first_look(&mut self, load: LoadLevel, ends: &LoadInterval) -> Result<VoteResult, SearchStop<M::Error>> {
        match self.trial(load, Purpose::Bracket, ends)? {
            Vote::Kept => Ok(VoteResult::Kept),
            Vote::Broken(_) | Vote::Void => self.lead(load, Purpose::Bracket, LEAD_FIRST, ends),
        }
    }

    /// Repeats trials until one answer leads.
    fn lead(
        &mut self,
        load: LoadLevel,
        purpose: Purpose,
        lead: u32,
        ends: &LoadInterval,
    ) -> Result<VoteResult, SearchStop<M::Error>> {
        loop {
            let votes = self.point(load).led;
            match votes {
                Votes { n_yes, n_no } if n_yes >= n_no + lead => return Ok(VoteResult::Kept),
                Votes { n_yes, n_no } if n_no >= n_yes + lead => return Ok(VoteResult::Broken),
                votes if votes.total() >= LED_MAX => return Ok(VoteResult::Open),
                _ => self.trial(load, purpose, ends)?,
            };
        }
    }

    /// Narrows the interval on a logarithmic scale and decides the lower end by a lead too.
    fn narrow(&mut self, ends: &mut LoadInterval) -> Result<(), SearchStop<M::Error>> {
        while let Some(kept) = ends.kept {
            let is_sure = ends.sure.0 == Certainty::Confirmed;
            let middle = ends.broken.map(|broken| (broken, kept.times(broken.per(kept).sqrt())));
            let load = match middle {
                Some((broken, middle))
                    if broken.per(kept) > 1.0 + self.aim.precision && kept < middle && middle < broken =>
                {
                    middle
                }
                _ if is_sure => return Ok(()),
                _ => kept,
            };
            match self.lead(load, Purpose::Narrow, LEAD, ends)? {
                VoteResult::Kept if load == kept => return Ok(()),
                VoteResult::Kept => ends.set(IntervalEnd::Kept, Some(load)),
                VoteResult::Broken | VoteResult::Open => {
                    ends.set(IntervalEnd::Broken, Some(load));
                    if load == kept {
                        let lower = self
                            .likely_beyond(IntervalEnd::Kept, load)
                            .or_else(|| self.beyond(IntervalEnd::Kept, load, 1));
                        ends.set(IntervalEnd::Kept, lower);
                    }
                }
            }
        }
        Ok(())
    }

    /// Confirms both ends in turns, so that drift over time affects both. An end that fails moves outwards.
    ///
    /// Returns whether an end turned out to be on the other side.
    fn confirm(&mut self, ends: &mut LoadInterval) -> Result<bool, SearchStop<M::Error>> {
        let mut turned = false;
        let (mut n_moves, mut n_given_up) = ([0, 0], [0, 0]);
        let mut turn = IntervalEnd::Kept;
        loop {
            let open = |end: IntervalEnd| ends.at(end).filter(|_| ends.certainty(end) == Certainty::Likely);
            let (end, load) = match (open(turn), open(turn.other())) {
                (Some(load), _) => (turn, load),
                (None, Some(load)) => (turn.other(), load),
                (None, None) => return Ok(turned),
            };
            turn = end.other();
            let error = self.error_of(load);
            self.trial(load, Purpose::Confirm, ends)?;
            let further = match judge(end.votes_for(self.point(load).confirmed), error) {
                ClaimState::Open => continue,
                ClaimState::Holds => {
                    ends.confirm(end);
                    continue;
                }
                ClaimState::Contrary => {
                    // It is the other end, with the same certainty.
                    turned = true;
                    ends.set(end.other(), Some(load));
                    ends.confirm(end.other());
                    self.likely_beyond(end, load)
                }
                ClaimState::GivenUp => {
                    n_given_up[usize::from(end == IntervalEnd::Broken)] += 1;
                    if n_given_up.contains(&GIVEN_UP_MAX) {
                        return Err(SearchStop::Unsettled);
                    }
                    None
                }
            };
            let n_moves = &mut n_moves[usize::from(end == IntervalEnd::Broken)];
            *n_moves += 1;
            ends.set(end, further.or_else(|| self.beyond(end, load, *n_moves)));
        }
    }

    /// The allowed error probability of the claim about a load, so that all claims together stay within the allowed error.
    fn error_of(&mut self, load: LoadLevel) -> f64 {
        if let Some((_, error)) = self.claims.iter().find(|(claimed, _)| *claimed == load) {
            return *error;
        }
        let share = match self.claims.len() {
            0 | 1 => FIRST_CLAIM,
            // The rest is divided into shares of 1/2, 1/6, 1/12 …, a series whose sum is 1.
            n => (1.0 - 2.0 * FIRST_CLAIM) / approximate(u64::try_from((n - 1) * n).unwrap_or(u64::MAX)),
        };
        let error = (1.0 - self.aim.confidence) * share;
        self.claims.push((load, error));
        error
    }

    /// Returns the nearest load beyond an end whose votes so far put it on the same side.
    fn likely_beyond(&self, end: IntervalEnd, load: LoadLevel) -> Option<LoadLevel> {
        let likely = |point: &&LoadPoint| end.votes_for(point.led).n_yes > end.votes_for(point.led).n_no;
        let found = match end {
            IntervalEnd::Kept => self.points.iter().rev().filter(|point| point.load < load).find(likely),
            IntervalEnd::Broken => self.points.iter().filter(|point| point.load > load).find(likely),
        };
        found.map(|point| point.load)
    }

    /// Returns a load beyond an end. The distance doubles each time, up to sixteen widths; `None` at the bound.
    fn beyond(&self, end: IntervalEnd, load: LoadLevel, n_moves: i32) -> Option<LoadLevel> {
        let step = (1.0 + self.aim.precision).powi(1 << n_moves.min(4));
        let next = self.bounded(load.times(if end == IntervalEnd::Kept { 1.0 / step } else { step }));
        (next != load).then_some(next)
    }

    /// Moves the ends of an interrupted search outwards, past every load whose votes contradict them.
    fn widen(&self, ends: &mut LoadInterval) {
        let majority = |point: &&LoadPoint| {
            let votes = point.led.and(point.confirmed);
            votes.n_yes.cmp(&votes.n_no)
        };
        let lowest_broken = self.points.iter().find(|point| majority(point).is_lt()).map(|point| point.load);
        let highest_kept = self.points.iter().rev().find(|point| majority(point).is_gt()).map(|point| point.load);
        let (mut kept, mut broken) = (highest_kept, lowest_broken);
        if let (Some(high), Some(low)) = (highest_kept, lowest_broken)
            && low < high
        {
            kept = self.points.iter().rev().find(|point| point.load < low).map(|point| point.load);
            broken = self.points.iter().find(|point| point.load > high).map(|point| point.load);
        }
        ends.set(IntervalEnd::Kept, kept);
        ends.set(IntervalEnd::Broken, broken);
    }

    /// Runs one trial at each load of the curve that has no measured load nearby.
    fn draw(&mut self, kept: Option<LoadLevel>) -> Result<(), SearchStop<M::Error>> {
        let Some(limit) = kept else { return Ok(()) };
        let ends = LoadInterval { kept, ..LoadInterval::default() };
        for share in &self.aim.curve {
            let load = self.bounded(limit.times(*share));
            if !self.points.iter().any(|point| (point.load.per(load) - 1.0).abs() < NEAR) {
                self.trial(load, Purpose::Curve, &ends)?;
            }
        }
        Ok(())
    }

    fn point(&mut self, load: LoadLevel) -> &mut LoadPoint {
        let idx = self.points.partition_point(|point| point.load < load);
        if self.points.get(idx).is_none_or(|point| point.load != load) {
            let (led, confirmed) = (Votes::default(), Votes::default());
            self.points.insert(idx, LoadPoint { load, led, confirmed, trials: Vec::new() });
        }
        &mut self.points[idx]
    }

    fn trial(&mut self, load: LoadLevel, purpose: Purpose, ends: &LoadInterval) -> Result<Vote, SearchStop<M::Error>> {
        let budget = self.aim.budget;
        if self.n_done >= budget.n_trials || self.took >= budget.time {
            return Err(SearchStop::Budget);
        }
        let n = self.n_done;
        let (kept, broken) = (ends.kept, ends.broken);
        let step = SearchTrialRequest { load, duration: None, purpose, n_done: n, kept, broken, left: None };
        let seen = self.measurer.measure(&step).map_err(SearchStop::Failed)?;
        self.n_done += 1;
        self.took += seen.took;
        let vote = seen.vote();
        let point = self.point(load);
        point.trials.push((n, vote));
        let votes = if purpose == Purpose::Confirm { &mut point.confirmed } else { &mut point.led };
        match vote {
            Vote::Kept => votes.n_yes += 1,
            Vote::Broken(_) => votes.n_no += 1,
            Vote::Void => {}
        }
        self.n_voids = if vote == Vote::Void { self.n_voids + 1 } else { 0 };
        if self.n_voids >= VOIDS_MAX { Err(SearchStop::Voids) } else { Ok(vote) }
    }
}

/// The state of the claim that a load lies on the side of its end.
enum ClaimState {
    Holds,
    Contrary,
    GivenUp,
    Open,
}

fn judge(votes: Votes, error: f64) -> ClaimState {
    let (evidence, contrary) = (votes.evidence(), votes.reversed().evidence());
    if evidence * error >= 1.0 {
        ClaimState::Holds
    } else if contrary * error >= 1.0 {
        ClaimState::Contrary
    } else if votes.total() >= CONFIRM_MAX || (votes.total() >= CONFIRM_MIN && evidence.max(contrary) < 1.0) {
        ClaimState::GivenUp
    } else {
        ClaimState::Open
    }
}

impl IntervalEnd {
    /// Counts the votes that put a load on the side of this end as yes.
    const fn votes_for(self, votes: Votes) -> Votes {
        match self {
            Self::Kept => votes,
            Self::Broken => votes.reversed(),
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Kept => Self::Broken,
            Self::Broken => Self::Kept,
        }
    }
}

impl LoadInterval {
    const fn at(&self, end: IntervalEnd) -> Option<LoadLevel> {
        match end {
            IntervalEnd::Kept => self.kept,
            IntervalEnd::Broken => self.broken,
        }
    }

    const fn certainty(&self, end: IntervalEnd) -> Certainty {
        match end {
            IntervalEnd::Kept => self.sure.0,
            IntervalEnd::Broken => self.sure.1,
        }
    }

    /// Moves an end to a load where nothing is confirmed yet.
    fn set(&mut self, end: IntervalEnd, load: Option<LoadLevel>) {
        let (place, sure) = match end {
            IntervalEnd::Kept => (&mut self.kept, &mut self.sure.0),
            IntervalEnd::Broken => (&mut self.broken, &mut self.sure.1),
        };
        if *place != load {
            (*place, *sure) = (load, Certainty::Likely);
        }
    }

    const fn confirm(&mut self, end: IntervalEnd) {
        match end {
            IntervalEnd::Kept => self.sure.0 = Certainty::Confirmed,
            IntervalEnd::Broken => self.sure.1 = Certainty::Confirmed,
        }
    }
}
