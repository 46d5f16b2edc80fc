//! A sender in virtual time: it polls its schedule on command, and sends everything that may leave then.

use fathom_engine::pace::{ArrivalProcess, WorkShare};
use fathom_model::units::{Nanos, PerSec};
use proptest::prelude::*;

use super::departures::{DeparturePattern, DepartureSchedule, RateStep, SchedulePoll};

/// The most frames in one batch.
const BATCH: usize = 64;
/// The time between two polls of a sender without a stall.
const LOOK_EVERY: Nanos = Nanos::from_micros(5);

pub(super) const ALONE: WorkShare = WorkShare { idx: 0, of: 1 };

#[derive(Debug, Clone)]
pub(super) struct VirtualSender {
    pub(super) departures: DepartureSchedule,
    pub(super) end: Nanos,
    /// The frames that have left.
    pub(super) sent: Vec<SentFrame>,
    pub(super) n_unsent: u64,
}

/// A frame that has left; both times in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentFrame {
    pub(super) at: u64,
    pub(super) due: u64,
}

/// A time during which a sender does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

impl VirtualSender {
    pub(super) fn new(departures: DepartureSchedule, end: Nanos) -> Self {
        Self { departures, end, sent: Vec::new(), n_unsent: 0 }
    }

    pub(super) fn poll(&mut self, now: Nanos) {
        let look = SchedulePoll { now, end: Some(self.end) };
        loop {
            self.n_unsent += self.departures.drop_late(look);
            let n = self.departures.n_ready(look, BATCH);
            if n == 0 {
                return;
            }
            for _ in 0..n {
                self.sent.push(SentFrame { at: look.ticks(), due: self.departures.next.due });
                self.departures.advance(look);
            }
        }
    }

    pub(super) fn is_over(&self, now: Nanos) -> bool {
        now > self.end && self.departures.due() > self.end
    }

    /// Polls repeatedly, except during stalls, until every frame due by the end has left or was given up; returns when that was.
    pub(super) fn run(&mut self, stalls: &[Stall]) -> Nanos {
        let mut now = Nanos::ZERO;
        while !self.is_over(now) {
            self.poll(now);
            now += LOOK_EVERY;
            if let Some(stall) = stalls.iter().find(|stall| stall.from <= now && now < stall.until) {
                now = stall.until;
            }
        }
        now
    }

    /// The number of all frames of the trial.
    pub(super) fn n_intended(&self) -> u64 {
        self.sent.len() as u64 + self.n_unsent
    }

    /// The largest lateness of a frame.
    pub(super) fn lag(&self) -> u64 {
        self.sent.iter().map(|left| left.at.saturating_sub(left.due)).max().unwrap_or(0)
    }
}

/// Returns how many frames are due by `end`, counted one by one.
pub(super) fn n_due(mut departures: DepartureSchedule, end: Nanos) -> u64 {
    let mut n = 0;
    while departures.due() <= end {
        departures.advance(SchedulePoll { now: departures.due(), end: None });
        n += 1;
    }
    n
}

pub(super) fn pattern(rate: f64, burst: u32, process: ArrivalProcess) -> DeparturePattern {
    DeparturePattern { rate: PerSec::new(rate).unwrap(), burst, process, rate_step: None }
}

/// Rates from about three to some 30 million frames per second, alone and in bursts, with all arrival processes.
pub(super) fn patterns() -> impl Strategy<Value = DeparturePattern> {
    let rate = || (0.5..7.5_f64).prop_map(|log| PerSec::new(10_f64.powf(log)).unwrap());
    let burst = prop_oneof![3 => Just(1), 2 => 2..20_u32, 1 => 100..2_000_u32];
    let step = proptest::option::of((0..40_000_000_u64, rate()));
    let constant =
        step.prop_map(|step| (ArrivalProcess::Constant, step.map(|(at, rate)| RateStep { at: Nanos(at), rate })));
    let poisson = any::<u64>().prop_map(|seed| (ArrivalProcess::Poisson { seed }, None));
    let process = prop_oneof![constant, poisson];
    (rate(), burst, process).prop_map(|(rate, burst, (process, step))| DeparturePattern {
        rate,
        burst,
        process,
        rate_step: step,
    })
}

/// Poll times of a sender with frequent stalls, and the end of its trial.
pub(super) fn looks() -> impl Strategy<Value = (Vec<Nanos>, Nanos)> {
    let gap = prop_oneof![12 => 1..50_000_u64, 3 => 50_000..3_000_000_u64, 1 => 3_000_000..30_000_000_u64];
    let looks = proptest::collection::vec(gap, 1..120).prop_map(|gaps| {
        let sum = |now: &mut u64, gap: u64| {
            *now += gap;
            Some(Nanos(*now))
        };
        [Nanos::ZERO].into_iter().chain(gaps.into_iter().scan(0, sum)).collect()
    });
    (looks, (0..60_000_000_u64).prop_map(Nanos))
}

/// The next poll time after the last one of [`looks`].
pub(super) fn next_look(sender: &VirtualSender, now: Nanos) -> Nanos {
    (now + Nanos::from_micros(50))
        .max(sender.departures.earliest_departure())
        .min(sender.end.max(now) + Nanos::from_millis(1))
}
