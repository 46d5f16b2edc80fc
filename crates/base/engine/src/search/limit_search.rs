//! The course of a search: bracket, narrow, confirm, draw the curve.

use fathom_model::{
    search::{Ending, Purpose, Vote},
    units::{Nanos, approximate},
};
use fathom_statistics::Votes;

use super::{Certainty, LoadLevel, LoadPoint, Measurer, SearchAim, SearchResult, SearchTrialRequest, VOIDS_MAX};

/// While nothing is known, the next load is twice the last one: overload costs a target more than a step does.
const UP: f64 = 2.0;
/// Below a first load that is broken, steps are longer, because nobody knows how far down the limit is.
const DOWN: f64 = 4.0;
/// On the way a load is decided by a lead of two: one stray vote decides nothing.
const LEAD: u32 = 2;
/// What ends the doubling is decided by a lead of three: two strays in turn would send all that follows to the wrong place.
const LEAD_FIRST: u32 = 3;
/// On the way, a load that that many votes do not decide is near the limit, which is good to know and enough.
const LED_MAX: u32 = 7;
/// From that many votes on, an end of which they say neither is given up for one further out.
const CONFIRM_MIN: u32 = 16;
/// An end that that many votes do not confirm is given up too: with more than one stray in five it would take longer than it is worth.
const CONFIRM_MAX: u32 = 60;
/// An end that was given up so often, ever further out, is not blurred: trials go wrong at any load.
const GIVEN_UP_MAX: u32 = 6;
/// The part of the error that the first claim about each end may have; six or seven votes that agree are enough for it.
const FIRST_CLAIM: f64 = 0.35;
/// An end that was shown to be on the wrong side leaves a gap that is narrowed again, this often.
const ROUNDS_MAX: u32 = 3;
/// A load of the curve that is this near to one that was measured is left out.
const NEAR: f64 = 0.05;

/// Searches for the highest load that keeps the objective.
pub fn search<M: Measurer>(aim: &SearchAim, measurer: &mut M) -> SearchResult<M::Error> {
    let mut course =
        LimitSearch { aim, measurer, points: Vec::new(), n_done: 0, took: Nanos::ZERO, n_voids: 0, claims: Vec::new() };
    let mut ends = LoadInterval::default();
    let outcome = course.find(&mut ends);
    if outcome.is_err() {
        course.widen(&mut ends);
    }
    let (ending, error) = match outcome {
        Ok(ending) => (ending, course.draw(ends.kept).err().and_then(SearchStop::error)),
        Err(SearchStop::Budget) => (Ending::OutOfBudget, None),
        Err(SearchStop::Unsettled) => (Ending::Unsettled, None),
        Err(SearchStop::Voids) => (Ending::Stopped, None),
        Err(SearchStop::Failed(error)) => (Ending::Stopped, Some(error)),
    };
    SearchResult { ending, kept: ends.kept, broken: ends.broken, sure: ends.sure, points: course.points, error }
}

/// Why no trial is made any more.
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

/// The interval so far.
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

/// What the votes on a load amount to.
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
    /// The loads that were to be confirmed, each with its part of the error that is allowed.
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

    /// Goes up while loads are kept, or down while they are broken, until both ends are known or a bound is met.
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

    /// Takes one vote that a load is kept for enough, since what is wrong in it will be noticed, and no other.
    fn first_look(&mut self, load: LoadLevel, ends: &LoadInterval) -> Result<VoteResult, SearchStop<M::Error>> {
        match self.trial(load, Purpose::Bracket, ends)? {
            Vote::Kept => Ok(VoteResult::Kept),
            Vote::Broken(_) | Vote::Void => self.lead(load, (Purpose::Bracket, LEAD_FIRST), ends),
        }
    }

    /// Asks until one answer leads.
    fn lead(
        &mut self,
        load: LoadLevel,
        (purpose, lead): (Purpose, u32),
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

    /// Brings the ends together, on a logarithmic scale, and has the lower one decided by a lead too.
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
            match self.lead(load, (Purpose::Narrow, LEAD), ends)? {
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

    /// Makes sure of both ends, in turns, so that what drifts in time drifts for both; an end that fails moves outwards.
    ///
    /// Returns whether an end turned out to be the other one.
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
                    // It is the other end, as surely as it would have been this one.
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

    /// How often a claim about a load may be wrong, so that all claims together are as seldom as is allowed.
    fn error_of(&mut self, load: LoadLevel) -> f64 {
        if let Some((_, error)) = self.claims.iter().find(|(claimed, _)| *claimed == load) {
            return *error;
        }
        let share = match self.claims.len() {
            0 | 1 => FIRST_CLAIM,
            // The rest is dealt out as 1/2, 1/6, 1/12 … of it, a series that ends at all of it.
            n => (1.0 - 2.0 * FIRST_CLAIM) / approximate(u64::try_from((n - 1) * n).unwrap_or(u64::MAX)),
        };
        let error = (1.0 - self.aim.confidence) * share;
        self.claims.push((load, error));
        error
    }

    /// The next load beyond an end that the votes on the way put on the same side.
    fn likely_beyond(&self, end: IntervalEnd, load: LoadLevel) -> Option<LoadLevel> {
        let likely = |point: &&LoadPoint| end.votes_for(point.led).n_yes > end.votes_for(point.led).n_no;
        let found = match end {
            IntervalEnd::Kept => self.points.iter().rev().filter(|point| point.load < load).find(likely),
            IntervalEnd::Broken => self.points.iter().filter(|point| point.load > load).find(likely),
        };
        found.map(|point| point.load)
    }

    /// A load beyond an end, twice as far each time, up to sixteen widths; nothing at the bound.
    fn beyond(&self, end: IntervalEnd, load: LoadLevel, n_moves: i32) -> Option<LoadLevel> {
        let step = (1.0 + self.aim.precision).powi(1 << n_moves.min(4));
        let next = self.bounded(load.times(if end == IntervalEnd::Kept { 1.0 / step } else { step }));
        (next != load).then_some(next)
    }

    /// Puts the ends of a search that was cut short where no vote speaks against them: beyond every load on the wrong side.
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

    /// One trial at each load of the curve that nothing near was measured at.
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

/// What votes say of the claim that a load lies on the side of its end.
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
    /// The votes with yes for those that put a load on the side of this end.
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

    /// Puts an end elsewhere, where nothing is confirmed yet.
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
