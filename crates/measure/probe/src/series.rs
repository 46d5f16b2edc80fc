//! Probes at an interval, or flat out: round trips, loss and outages.

use std::collections::BTreeMap;

use fathom_model::units::Nanos;

use super::{
    driver::{ProbeDriver, ProbeEvent, ProbeStep},
    template::ProbeFields,
    tracker::{ProbeOutcome, ProbeTracker},
};

/// The timing of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// The interval between probes; zero for flat out.
    pub interval: Nanos,
    /// The number of probes; `None` to send until the end.
    pub count: Option<u64>,
    /// The latest time for the last probe.
    pub end: Nanos,
    /// How long an answer may take before it is late.
    pub timeout: Nanos,
}

#[derive(Debug)]
pub struct ProbeSeries {
    schedule: Schedule,
    tracker: ProbeTracker,
    next_due: Option<Nanos>,
    last_sent: Nanos,
    n_too_long: u64,
    icmp_errors: BTreeMap<String, u64>,
}

/// The most distinct ICMP errors that are counted separately: there may be many routers.
const ICMP_ERRORS_MAX: usize = 64;

impl ProbeSeries {
    /// Starts a series. `outage_probes` silent probes in a row are an outage.
    #[must_use]
    pub fn new(schedule: Schedule, outage_probes: u64) -> Self {
        Self {
            schedule,
            tracker: ProbeTracker::new(schedule.timeout, outage_probes),
            next_due: None,
            last_sent: Nanos::ZERO,
            n_too_long: 0,
            icmp_errors: BTreeMap::new(),
        }
    }

    /// Returns the state of the probes.
    #[must_use]
    pub fn tracker(&self) -> &ProbeTracker {
        &self.tracker
    }

    /// Settles all overdue probes, if the test was stopped early.
    pub fn finish(&mut self, now: Nanos) {
        self.tracker.expire(now);
    }

    /// Returns the number of probes that were too long for the local device.
    #[must_use]
    pub fn n_too_long(&self) -> u64 {
        self.n_too_long
    }

    /// Returns the ICMP errors, by sender and meaning, with their counts.
    #[must_use]
    pub fn icmp_errors(&self) -> &BTreeMap<String, u64> {
        &self.icmp_errors
    }

    /// Records an event; returns the outcome if it was a reply.
    pub fn on_event_with_outcome(&mut self, event: &ProbeEvent<'_>, at: Nanos) -> Option<ProbeOutcome> {
        match event {
            ProbeEvent::Sent(_) => {
                self.tracker.record_sent(at);
                self.advance(at);
                None
            }
            // An outage at this host also counts.
            ProbeEvent::NoRoute(_) => {
                let tag = self.tracker.next_tag();
                self.tracker.record_sent(at);
                self.tracker.record_refused(tag);
                *self.icmp_errors.entry("no way from the own host".to_owned()).or_default() += 1;
                self.advance(at);
                None
            }
            ProbeEvent::TooLong(_) => {
                self.n_too_long += 1;
                self.advance(at);
                None
            }
            ProbeEvent::Transmitted { tag } => {
                self.tracker.record_transmitted(*tag, at);
                None
            }
            ProbeEvent::Reply(reply, _) => {
                let tag = reply.tag.or_else(|| self.tracker.oldest_waiting())?;
                if reply.is_from_target {
                    return Some(self.tracker.record_answer(tag, at));
                }
                if let Some(complaint) = reply.icmp_error_kind() {
                    let key = format!("{complaint}, says {}", reply.from);
                    if self.icmp_errors.len() < ICMP_ERRORS_MAX || self.icmp_errors.contains_key(&key) {
                        *self.icmp_errors.entry(key).or_default() += 1;
                    }
                    self.tracker.record_refused(tag);
                }
                None
            }
        }
    }

    /// The next probe is due one interval after this one was. Probes missed while the machine was busy are skipped.
    fn advance(&mut self, at: Nanos) {
        self.last_sent = at;
        let due = self.next_due.unwrap_or(at) + self.schedule.interval;
        self.next_due = Some(if due + self.schedule.interval < at { at } else { due });
    }

    fn is_all_sent(&self, now: Nanos) -> bool {
        let n_tried = self.tracker.counts().n_sent + self.n_too_long;
        let is_late = self.next_due.unwrap_or(now).max(now) >= self.schedule.end;
        self.schedule.count.is_some_and(|count| n_tried >= count) || is_late
    }
}

impl ProbeDriver for ProbeSeries {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        self.tracker.expire(now);
        if !self.is_all_sent(now) {
            let due = self.next_due.unwrap_or(now);
            return if due <= now {
                ProbeStep::Send(ProbeFields { tag: self.tracker.next_tag(), ..ProbeFields::default() })
            } else {
                ProbeStep::Wait(due)
            };
        }
        // Overdue probes may be answered until the last one times out.
        let counts = self.tracker.counts();
        let end = self.last_sent + self.schedule.timeout + Nanos(1);
        let is_complete = counts.n_lost() == counts.n_refused;
        if is_complete || now >= end || counts.n_sent == 0 { ProbeStep::Done } else { ProbeStep::Wait(end) }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.on_event_with_outcome(event, at);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tracker::Outage, *};

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn probes_for_which_the_own_host_has_no_way_are_lost_and_an_outage() {
        let schedule = Schedule { interval: MS(10), count: Some(6), end: Nanos::MAX, timeout: MS(100) };
        let mut series = ProbeSeries::new(schedule, 3);
        for nth in 0..6 {
            let at = MS(10 * nth);
            let ProbeStep::Send(order) = series.step(at) else { panic!("probe {nth} is due") };
            if (1..5).contains(&nth) {
                series.on_event(&ProbeEvent::NoRoute(order), at);
            } else {
                series.on_event(&ProbeEvent::Sent(order), at);
                series.tracker.record_answer(order.tag, at + MS(1));
            }
        }
        series.finish(MS(1000));
        let counts = series.tracker().counts();
        assert_eq!((counts.n_sent, counts.n_lost(), counts.n_refused), (6, 4, 4));
        assert_eq!(series.tracker().outages(), [Outage { from: MS(10), until: Some(MS(50)), n_probes: 4 }]);
        assert_eq!(series.icmp_errors()["no way from the own host"], 4);
    }
}
