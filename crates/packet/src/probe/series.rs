//! Probes at an interval, or flat out: round trips, loss, and when there was no answer.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;

use super::{
    conversation::Order,
    course::{Course, Event, Step},
    ledger::{Fate, Ledger},
};

/// When probes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// From one to the next; zero is flat out.
    pub interval: Nanos,
    /// How many; without it they go on until the end.
    pub count: Option<u64>,
    /// When the last is sent at the latest.
    pub end: Nanos,
    /// How long an answer may take before it is late.
    pub patience: Nanos,
}

/// Probes one after the other.
#[derive(Debug)]
pub struct Series {
    schedule: Schedule,
    ledger: Ledger,
    next_due: Option<Nanos>,
    last_sent: Nanos,
    n_too_long: u64,
    complaints: BTreeMap<String, u64>,
}

/// The most different complaints that are told apart: routers may be many.
const COMPLAINTS_MAX: usize = 64;

impl Series {
    /// Nothing is sent yet; so many silent probes in a row are an outage.
    #[must_use]
    pub fn new(schedule: Schedule, outage_probes: u64) -> Self {
        Self {
            schedule,
            ledger: Ledger::new(schedule.patience, outage_probes),
            next_due: None,
            last_sent: Nanos::ZERO,
            n_too_long: 0,
            complaints: BTreeMap::new(),
        }
    }

    /// What became of the probes.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Decides about everything that is overdue, when the course was cut short.
    pub fn close(&mut self, now: Nanos) {
        self.ledger.sweep(now);
    }

    /// Probes that were longer than the own device takes.
    #[must_use]
    pub fn n_too_long(&self) -> u64 {
        self.n_too_long
    }

    /// What was complained of, by whom, and how often.
    #[must_use]
    pub fn complaints(&self) -> &BTreeMap<String, u64> {
        &self.complaints
    }

    /// Takes note of what happened, and says what a reply amounts to.
    pub fn take(&mut self, event: &Event<'_>, at: Nanos) -> Option<Fate> {
        match event {
            Event::Sent(_) => {
                self.ledger.sent(at);
                self.advance(at);
                None
            }
            // An outage that begins at the own host is one.
            Event::NoWay(_) => {
                let tag = self.ledger.next_tag();
                self.ledger.sent(at);
                self.ledger.refused(tag);
                *self.complaints.entry("no way from the own host".to_owned()).or_default() += 1;
                self.advance(at);
                None
            }
            Event::TooLong(_) => {
                self.n_too_long += 1;
                self.advance(at);
                None
            }
            Event::Left { tag } => {
                self.ledger.left(*tag, at);
                None
            }
            Event::Heard(reply, _) => {
                let tag = reply.tag.or_else(|| self.ledger.oldest_waiting())?;
                if reply.is_from_target {
                    return Some(self.ledger.answered(tag, at));
                }
                if let Some(complaint) = reply.complaint() {
                    let key = format!("{complaint}, says {}", reply.from);
                    if self.complaints.len() < COMPLAINTS_MAX || self.complaints.contains_key(&key) {
                        *self.complaints.entry(key).or_default() += 1;
                    }
                    self.ledger.refused(tag);
                }
                None
            }
        }
    }

    /// The next one is due an interval after this one was; what was missed while the machine was busy is not made up for.
    fn advance(&mut self, at: Nanos) {
        self.last_sent = at;
        let due = self.next_due.unwrap_or(at) + self.schedule.interval;
        self.next_due = Some(if due + self.schedule.interval < at { at } else { due });
    }

    fn is_all_sent(&self, now: Nanos) -> bool {
        let n_tried = self.ledger.counts().n_sent + self.n_too_long;
        let is_late = self.next_due.unwrap_or(now).max(now) >= self.schedule.end;
        self.schedule.count.is_some_and(|count| n_tried >= count) || is_late
    }
}

impl Course for Series {
    fn step(&mut self, now: Nanos) -> Step {
        self.ledger.sweep(now);
        if !self.is_all_sent(now) {
            let due = self.next_due.unwrap_or(now);
            return if due <= now {
                Step::Send(Order { tag: self.ledger.next_tag(), ..Order::default() })
            } else {
                Step::Wait(due)
            };
        }
        // What is overdue already may still come as late as the last one may.
        let counts = self.ledger.counts();
        let end = self.last_sent + self.schedule.patience + Nanos(1);
        let is_complete = counts.n_lost() == counts.n_refused;
        if is_complete || now >= end || counts.n_sent == 0 { Step::Over } else { Step::Wait(end) }
    }

    fn note(&mut self, event: &Event<'_>, at: Nanos) {
        self.take(event, at);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ledger::Gap, *};

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn probes_for_which_the_own_host_has_no_way_are_lost_and_an_outage() {
        let schedule = Schedule { interval: MS(10), count: Some(6), end: Nanos::MAX, patience: MS(100) };
        let mut series = Series::new(schedule, 3);
        for nth in 0..6 {
            let at = MS(10 * nth);
            let Step::Send(order) = series.step(at) else { panic!("probe {nth} is due") };
            if (1..5).contains(&nth) {
                series.note(&Event::NoWay(order), at);
            } else {
                series.note(&Event::Sent(order), at);
                series.ledger.answered(order.tag, at + MS(1));
            }
        }
        series.close(MS(1000));
        let counts = series.ledger().counts();
        assert_eq!((counts.n_sent, counts.n_lost(), counts.n_refused), (6, 4, 4));
        assert_eq!(series.ledger().outages(), [Gap { from: MS(10), until: Some(MS(50)), n_probes: 4 }]);
        assert_eq!(series.complaints()["no way from the own host"], 4);
    }
}
