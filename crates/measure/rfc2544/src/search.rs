//! The throughput of RFC 2544 section 26.1 and the conditional throughputs of RFC 9971, in one search.

use fathom_engine::search::{
    Forwarded, LoadLevel, Measurer, Observation, SearchEnd, SearchTrialRequest,
    mlr::{self, ControllerInput, ControllerOutput, GoalResult, SearchGoal, TrialResult},
};
use fathom_model::units::{Nanos, approximate, rounded};

use super::{LAG_MAX, MethodResult, StopReason, Tester, TrialRequest, TrialTraffic, retry::TRIES};

/// The parameters of a rate search.
#[derive(Debug, Clone, PartialEq)]
pub struct ThroughputOptions {
    pub goals: Vec<SearchGoal>,
    /// The lowest and the highest rate.
    pub rates: (LoadLevel, LoadLevel),
    /// The time limit of the search.
    pub time: Nanos,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct ThroughputResult {
    /// One result per goal, in their order.
    pub goals: Vec<GoalResult>,
    /// All rates with their trials, ascending.
    pub loads: Vec<(LoadLevel, Vec<TrialResult>)>,
    /// Trials in which the tool did not send the requested traffic.
    pub n_repeated: u32,
}

/// The tester as the measurer of RFC 9971.
struct RateMeasurer<'a, T> {
    tester: &'a mut T,
    /// The largest ratio of unsent frames: half a width, so that the sent rate is on the same side of a bound.
    unsent_max: f64,
    n_void: u32,
    /// The time limit of the search.
    time: Nanos,
    /// The time of all trials so far.
    spent: Nanos,
}

/// Why the measurer of a search stopped.
enum MeasureError<E> {
    Unsent(u64),
    /// The time of the search ended before a trial was sent as requested.
    OutOfTime,
    Failed(E),
}

impl<T: Tester> Measurer for RateMeasurer<'_, T> {
    type Error = MeasureError<T::Error>;

    fn measure(&mut self, step: &SearchTrialRequest) -> Result<Observation, Self::Error> {
        let (rate, duration) = (step.load.get(), step.duration.unwrap_or(Nanos::from_secs(1)));
        let traffic = TrialTraffic::Stream { rate, duration };
        let asked = TrialRequest { traffic, purpose: step.purpose.word(), time_left: step.left.unwrap_or(duration) };
        let mut took = Nanos::ZERO;
        for _ in 0..TRIES {
            let seen = self.tester.trial(&asked).map_err(MeasureError::Failed)?;
            took += seen.took;
            self.spent += seen.took;
            match seen.loss_ratio().filter(|_| seen.is_valid(self.unsent_max, LAG_MAX)) {
                Some(loss_ratio) => {
                    let rate = Some(rate * (1.0 - loss_ratio));
                    let forwarded = Some(Forwarded { loss_ratio, effective: duration, rate });
                    return Ok(Observation { forwarded, took, ..Observation::default() });
                }
                None => self.n_void += 1,
            }
            if self.spent >= self.time {
                return Err(MeasureError::OutOfTime);
            }
        }
        Err(MeasureError::Unsent(rounded(rate)))
    }
}

/// The factor by which the search lowers a rate that cannot be sent.
const STEP_DOWN: f64 = 0.7;

/// Searches for the highest rates that meet the goals.
///
/// A rate that the tool fails to send in ten trials in a row becomes the upper bound. The search then reports its results for
/// lower rates, in the time that is left.
pub fn throughput<T: Tester>(input: &ThroughputOptions, tester: &mut T) -> MethodResult<ThroughputResult, T::Error> {
    let narrowest = input.goals.iter().map(|goal| goal.width).fold(1.0, f64::min);
    let mut rates =
        RateMeasurer { tester, unsent_max: narrowest / 2.0, n_void: 0, time: input.time, spent: Nanos::ZERO };
    let (min_load, max_load) = input.rates;
    let mut controlled = ControllerInput { goals: input.goals.clone(), min_load, max_load, time: input.time };
    let mut unsent = None;
    loop {
        let ControllerOutput { goals, loads, ended } = mlr::mlrsearch(&controlled, &mut rates);
        let cut = match ended {
            SearchEnd::Done => unsent.map(|rate| StopReason::RateNotSent { rate }),
            SearchEnd::OutOfTime | SearchEnd::Failed(MeasureError::OutOfTime) => Some(StopReason::OutOfTime),
            SearchEnd::Voids => Some(StopReason::RateNotSent { rate: rounded(max_load.get()) }),
            SearchEnd::Failed(MeasureError::Unsent(rate)) => {
                let first = *unsent.get_or_insert(rate);
                let lower = LoadLevel::new((approximate(rate) * STEP_DOWN).round()).filter(|load| *load > min_load);
                if let Some(lower) = lower.filter(|_| goals.iter().any(|goal| goal.lower.is_none())) {
                    (controlled.max_load, controlled.time) = (lower, input.time.since(rates.spent));
                    continue;
                }
                Some(StopReason::RateNotSent { rate: first })
            }
            SearchEnd::Failed(MeasureError::Failed(error)) => Some(StopReason::Failed(error)),
        };
        return MethodResult { result: ThroughputResult { goals, loads, n_repeated: rates.n_void }, stopped: cut };
    }
}

#[cfg(test)]
mod tests {
    use fathom_engine::search::mlr::GoalEnding;

    use super::{
        super::{TrialCounts, virtual_device::VirtualDevice},
        *,
    };

    fn input(goals: Vec<SearchGoal>) -> ThroughputOptions {
        let rates = (LoadLevel::new(100.0).unwrap(), LoadLevel::new(1e6).unwrap());
        ThroughputOptions { goals, rates, time: Nanos::from_secs(1000) }
    }

    #[test]
    fn the_throughput_of_a_policer_is_its_rate() {
        let goal = SearchGoal { width: 0.002, ..SearchGoal::tst009(Nanos::from_secs(10)) };
        let mut device = VirtualDevice::policer(200_000.0, 512.0);
        let MethodResult { result: found, stopped: cut } = throughput(&input(vec![goal]), &mut device);
        assert_eq!((cut, found.goals[0].ending, found.n_repeated), (None, GoalEnding::Regular, 0));
        let rate = found.goals[0].lower.unwrap().get();
        // Its burst lets 51 more pass in each second of a trial of 10 s.
        assert!((rate / 200_051.2 - 1.0).abs() < 0.002, "{rate}");
    }

    #[test]
    fn trials_that_were_not_sent_are_made_again_and_counted() {
        let goal = SearchGoal::tst009(Nanos::from_secs(1));
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.stalls_every = Some(3);
        let MethodResult { result: found, stopped: cut } = throughput(&input(vec![goal]), &mut device);
        assert_eq!((cut, found.goals[0].ending), (None, GoalEnding::Regular));
        assert!(found.n_repeated > 3, "{}", found.n_repeated);
    }

    #[test]
    fn a_trial_without_loss_is_as_void_as_one_with_it_where_frames_left_late() {
        for received in [1_000, 999] {
            let seen = |lag| TrialCounts { intended: 1_000, offered: 1_000, received, lag, ..TrialCounts::default() };
            assert!(seen(LAG_MAX).is_valid(0.0, LAG_MAX));
            assert!(!seen(LAG_MAX + Nanos(1)).is_valid(0.0, LAG_MAX), "{received} received");
        }
    }

    #[test]
    fn a_loss_that_a_late_sender_may_have_caused_is_looked_at_again() {
        let goal = SearchGoal::tst009(Nanos::from_secs(1));
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.lags_every = Some(3);
        let MethodResult { result: found, stopped: cut } = throughput(&input(vec![goal]), &mut device);
        assert_eq!((cut, found.goals[0].ending), (None, GoalEnding::Regular));
        assert!(found.n_repeated > 0, "{}", found.n_repeated);
        assert!((found.goals[0].lower.unwrap().get() / 200_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_load_that_the_tool_cannot_send_bounds_the_search_and_is_named() {
        let mut device = VirtualDevice::policer(2e6, 1.0);
        device.sends_max = 500_000.0;
        let MethodResult { result: found, stopped: cut } =
            throughput(&input(vec![SearchGoal::tst009(Nanos::from_secs(1))]), &mut device);
        assert_eq!((cut, found.n_repeated), (Some(StopReason::RateNotSent { rate: 1_000_000 }), 2 * TRIES));
        let goal = &found.goals[0];
        assert_eq!(
            (goal.ending, goal.lower.map(LoadLevel::get)),
            (GoalEnding::MaxLoad, Some(490_000.0)),
            "what can be sent"
        );
    }

    #[test]
    fn a_tool_that_sends_nothing_on_time_ends_with_the_time_of_the_search() {
        let mut device = VirtualDevice::policer(2e6, 1.0);
        device.sends_max = 1.0;
        let goal = SearchGoal::tst009(Nanos::from_secs(1));
        let input = ThroughputOptions { time: Nanos::from_secs(15), ..input(vec![goal]) };
        let MethodResult { result: found, stopped: cut } = throughput(&input, &mut device);
        // Ten trials at the highest rate, and five at a lower one.
        assert_eq!((cut, found.n_repeated), (Some(StopReason::OutOfTime), 15));
    }

    #[test]
    fn a_search_that_is_interrupted_keeps_its_loads() {
        let mut device = VirtualDevice::policer(200_000.0, 1.0);
        device.fails_after = Some(6);
        let MethodResult { result: found, stopped: cut } =
            throughput(&input(vec![SearchGoal::tst009(Nanos::from_secs(1))]), &mut device);
        assert_eq!(cut, Some(StopReason::Failed("ctrl-C")));
        assert_eq!(found.loads.iter().map(|(_, trials)| trials.len()).sum::<usize>(), 6);
    }
}
