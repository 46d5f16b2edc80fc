//! Tracks numbered probes: answered in time, late, twice, or never.
//!
//! It knows no packets and no clock: callers pass the times. Memory does not depend on the number of probes.

use fathom_model::{Histogram, units::Nanos};

use super::template::TAGS;

/// The outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The first answer, within the timeout, with its round trip.
    Answered(Nanos),
    /// The first answer, after the timeout. A late probe is not lost.
    Late(Nanos),
    /// A further answer.
    Duplicate(Nanos),
    /// No probe with this tag is remembered.
    Unknown,
}

/// A period without answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// When the first probe without an answer was sent.
    pub from: Nanos,
    /// When the next probe with an answer was sent; `None` while the outage lasts.
    pub until: Option<Nanos>,
    /// The number of probes without an answer in time.
    pub n_probes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeState {
    Waiting,
    Answered,
    /// Not answered in time, and counted as such.
    Overdue,
    /// Refused by a router or the host.
    Refused,
    LateAnswered,
}

#[derive(Debug, Clone, Copy)]
struct ProbeSlot {
    sent: Nanos,
    state: ProbeState,
}

/// Counts of probes by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Handed to the kernel.
    pub n_sent: u64,
    /// Answered in time.
    pub n_answered: u64,
    /// Answered, but not in time.
    pub n_late: u64,
    /// Further answers to the same probe.
    pub n_duplicates: u64,
    /// First answers that came after the answer to a later probe.
    pub n_reordered: u64,
    /// Refused on the path by an ICMP error.
    pub n_refused: u64,
}

impl ProbeCounts {
    /// Probes without any answer from their destination.
    #[must_use]
    pub fn n_lost(&self) -> u64 {
        self.n_sent.saturating_sub(self.n_answered + self.n_late)
    }
}

/// The probes of one series by number, with one slot per tag.
#[derive(Debug, Clone)]
pub struct ProbeTracker {
    slots: Vec<ProbeSlot>,
    timeout: Nanos,
    counts: ProbeCounts,
    rtts: Histogram,
    /// The highest number with an answer, plus one.
    frontier: u64,
    /// Probes below this number are settled.
    settled: u64,
    outages: OutageTracker,
}

/// The most outages that are kept; further ones are only counted.
const OUTAGES_MAX: usize = 1_000;

#[derive(Debug, Clone)]
struct OutageTracker {
    /// The number of silent probes in a row that make an outage.
    threshold: u64,
    current: Option<Outage>,
    finished: Vec<Outage>,
    n_further: u64,
}

impl OutageTracker {
    fn count_silent(&mut self, sent: Nanos) {
        let gap = self.current.get_or_insert(Outage { from: sent, until: None, n_probes: 0 });
        gap.n_probes += 1;
    }

    fn count_answered(&mut self, sent: Nanos) {
        let Some(gap) = self.current.take().filter(|gap| gap.n_probes >= self.threshold) else { return };
        if self.finished.len() < OUTAGES_MAX {
            self.finished.push(Outage { until: Some(sent), ..gap });
        } else {
            self.n_further += 1;
        }
    }
}

impl ProbeTracker {
    /// Creates an empty tracker. An answer after more than `patience` is late, and `outage_probes` silent probes in a row are an
    /// outage.
    #[must_use]
    pub fn new(patience: Nanos, outage_probes: u64) -> Self {
        let outages =
            OutageTracker { threshold: outage_probes.max(1), current: None, finished: Vec::new(), n_further: 0 };
        Self {
            slots: vec![ProbeSlot { sent: Nanos::ZERO, state: ProbeState::Answered }; TAGS.into()],
            timeout: patience,
            counts: ProbeCounts::default(),
            rtts: Histogram::new(),
            frontier: 0,
            settled: 0,
            outages,
        }
    }

    /// The tag of the next probe.
    #[must_use]
    pub fn next_tag(&self) -> u16 {
        tag_of(self.counts.n_sent)
    }

    /// Records that the next probe was sent, and forgets the previous probe with its tag.
    pub fn record_sent(&mut self, at: Nanos) {
        // The oldest probe must be settled before its slot is reused.
        if self.counts.n_sent - self.settled >= u64::from(TAGS) {
            self.decide_next();
        }
        let tag = self.next_tag();
        self.slots[usize::from(tag)] = ProbeSlot { sent: at, state: ProbeState::Waiting };
        self.counts.n_sent += 1;
    }

    /// Corrects the time of a probe, once the kernel has reported when it left.
    pub fn record_transmitted(&mut self, tag: u16, at: Nanos) {
        if let Some(slot) = self.slots.get_mut(usize::from(tag)).filter(|slot| slot.state == ProbeState::Waiting) {
            slot.sent = at;
        }
    }

    /// When the last probe with a tag was sent.
    #[must_use]
    pub fn sent_at(&self, tag: u16) -> Option<Nanos> {
        self.number(tag)?;
        self.slots.get(usize::from(tag)).map(|slot| slot.sent)
    }

    /// The number, from 0, of the last probe with a tag.
    #[must_use]
    pub fn number(&self, tag: u16) -> Option<u64> {
        let n_tags = u64::from(TAGS);
        let last = self.counts.n_sent.checked_sub(1)?;
        let back = (last % n_tags + n_tags - u64::from(tag)) % n_tags;
        last.checked_sub(back)
    }

    /// Returns the tag of the oldest probe that still waits, or of the last one. For replies without a tag.
    #[must_use]
    pub fn oldest_waiting(&self) -> Option<u16> {
        let waiting = (self.settled..self.counts.n_sent).map(tag_of);
        let mut waiting = waiting.filter(|tag| self.slots[usize::from(*tag)].state == ProbeState::Waiting);
        waiting.next().or_else(|| self.counts.n_sent.checked_sub(1).map(tag_of))
    }

    pub fn record_answer(&mut self, tag: u16, at: Nanos) -> ProbeOutcome {
        let Some(number) = self.number(tag) else { return ProbeOutcome::Unknown };
        let slot = &mut self.slots[usize::from(tag)];
        let rtt = at.since(slot.sent);
        let fate = match slot.state {
            ProbeState::Answered | ProbeState::LateAnswered => {
                self.counts.n_duplicates += 1;
                return ProbeOutcome::Duplicate(rtt);
            }
            // An answer may be read before expired probes are swept. Only its round trip counts.
            ProbeState::Waiting | ProbeState::Refused if rtt <= self.timeout => ProbeOutcome::Answered(rtt),
            ProbeState::Waiting | ProbeState::Refused | ProbeState::Overdue => ProbeOutcome::Late(rtt),
        };
        if slot.state == ProbeState::Refused {
            self.counts.n_refused -= 1;
        }
        if matches!(fate, ProbeOutcome::Answered(_)) {
            slot.state = ProbeState::Answered;
            self.counts.n_answered += 1;
        } else {
            slot.state = ProbeState::LateAnswered;
            self.counts.n_late += 1;
        }
        self.rtts.record(rtt.0);
        if number < self.frontier {
            self.counts.n_reordered += 1;
        }
        self.frontier = self.frontier.max(number + 1);
        fate
    }

    /// Records that a probe was refused, which is not an answer of its host.
    pub fn record_refused(&mut self, tag: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(tag)).filter(|slot| slot.state == ProbeState::Waiting) {
            slot.state = ProbeState::Refused;
            self.counts.n_refused += 1;
        }
    }

    /// Settles all timed-out probes, in sending order.
    pub fn expire(&mut self, now: Nanos) {
        while self.settled < self.counts.n_sent {
            let slot = self.slots[usize::from(tag_of(self.settled))];
            if slot.state == ProbeState::Waiting && now.since(slot.sent) <= self.timeout {
                return;
            }
            self.decide_next();
        }
    }

    fn decide_next(&mut self) {
        let slot = &mut self.slots[usize::from(tag_of(self.settled))];
        if slot.state == ProbeState::Answered {
            self.outages.count_answered(slot.sent);
        } else {
            self.outages.count_silent(slot.sent);
            if slot.state == ProbeState::Waiting {
                slot.state = ProbeState::Overdue;
            }
        }
        self.settled += 1;
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> ProbeCounts {
        self.counts
    }

    /// The round trips of all first answers, in nanoseconds, including late ones.
    #[must_use]
    pub fn rtts(&self) -> &Histogram {
        &self.rtts
    }

    /// The outages so far, including a current one.
    #[must_use]
    pub fn outages(&self) -> Vec<Outage> {
        let lasting = self.outages.current.filter(|gap| gap.n_probes >= self.outages.threshold);
        self.outages.finished.iter().copied().chain(lasting).collect()
    }

    /// The number of outages beyond those.
    #[must_use]
    pub fn n_further_outages(&self) -> u64 {
        self.outages.n_further
    }
}

fn tag_of(number: u64) -> u16 {
    u16::try_from(number % u64::from(TAGS)).expect("a tag is below 2^15")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    fn ledger() -> ProbeTracker {
        ProbeTracker::new(MS(100), 2)
    }

    /// Probes every 10 ms, from 0.
    fn with_probes(n: u64) -> ProbeTracker {
        let mut ledger = ledger();
        (0..n).for_each(|number| ledger.record_sent(MS(10 * number)));
        ledger
    }

    #[test]
    fn late_answers_do_not_count_as_loss() {
        let mut ledger = with_probes(3);
        assert_eq!(ledger.record_answer(0, MS(50)), ProbeOutcome::Answered(MS(50)));
        ledger.expire(MS(500));
        assert_eq!(ledger.counts().n_lost(), 2);
        assert_eq!(ledger.record_answer(1, MS(510)), ProbeOutcome::Late(MS(500)));
        let counts = ledger.counts();
        assert_eq!((counts.n_answered, counts.n_late, counts.n_lost()), (1, 1, 1));
        assert_eq!(ledger.rtts().max(), Some(MS(500).0).map(|ns| ledger.rtts().value_at_rank(2).unwrap_or(ns)));
    }

    #[test]
    fn an_answer_that_is_read_late_but_came_in_time_is_in_time() {
        let mut ledger = with_probes(1);
        assert_eq!(ledger.record_answer(0, MS(100)), ProbeOutcome::Answered(MS(100)));
        let mut ledger = with_probes(1);
        assert_eq!(ledger.record_answer(0, MS(101)), ProbeOutcome::Late(MS(101)));
    }

    #[test]
    fn a_second_answer_is_a_duplicate_and_an_overtaken_one_reordered() {
        let mut ledger = with_probes(3);
        ledger.record_answer(1, MS(30));
        assert_eq!(ledger.record_answer(1, MS(31)), ProbeOutcome::Duplicate(MS(21)));
        ledger.record_answer(0, MS(32));
        ledger.record_answer(2, MS(33));
        let counts = ledger.counts();
        assert_eq!((counts.n_duplicates, counts.n_reordered, counts.n_lost()), (1, 1, 0));
    }

    #[test]
    fn outages_beyond_the_most_that_are_kept_are_counted() {
        let mut tracker = OutageTracker { threshold: 1, current: None, finished: Vec::new(), n_further: 0 };
        for at in 0..OUTAGES_MAX as u64 + 7 {
            tracker.count_silent(MS(2 * at));
            tracker.count_answered(MS(2 * at + 1));
        }
        assert_eq!((tracker.finished.len(), tracker.n_further), (OUTAGES_MAX, 7));
    }

    #[test]
    fn an_outage_lasts_from_the_first_silent_probe_to_the_next_answered_one() {
        let mut ledger = with_probes(10);
        for tag in [0, 1, 2, 6, 8, 9] {
            ledger.record_answer(tag, MS(10 * u64::from(tag) + 1));
        }
        ledger.expire(MS(1000));
        // A single silent probe, number 7, is loss but not an outage.
        assert_eq!(ledger.outages(), [Outage { from: MS(30), until: Some(MS(60)), n_probes: 3 }]);
        ledger.record_sent(MS(1000));
        ledger.record_sent(MS(1010));
        ledger.expire(MS(2000));
        assert_eq!(ledger.outages()[1], Outage { from: MS(1000), until: None, n_probes: 2 });
    }

    #[test]
    fn the_kernel_s_time_of_leaving_shortens_the_round_trip() {
        let mut ledger = with_probes(1);
        ledger.record_transmitted(0, Nanos::from_micros(20));
        assert_eq!(ledger.record_answer(0, MS(1)), ProbeOutcome::Answered(Nanos::from_micros(980)));
    }

    #[test]
    fn a_refused_probe_is_no_answer_until_one_comes_after_all() {
        let mut ledger = with_probes(2);
        ledger.record_refused(0);
        ledger.record_refused(1);
        assert_eq!((ledger.counts().n_refused, ledger.counts().n_lost()), (2, 2));
        ledger.record_answer(1, MS(50));
        assert_eq!((ledger.counts().n_refused, ledger.counts().n_lost()), (1, 1));
    }

    #[test]
    fn tags_come_round_and_old_probes_are_lost_for_good() {
        let mut ledger = ledger();
        let n = u64::from(TAGS) + 5;
        (0..n).for_each(|number| ledger.record_sent(Nanos(number)));
        assert_eq!(ledger.next_tag(), 5);
        assert_eq!(ledger.record_answer(4, Nanos(n)), ProbeOutcome::Answered(Nanos(1)));
        assert_eq!((ledger.counts().n_sent, ledger.counts().n_answered), (n, 1));
        assert_eq!(super::ProbeTracker::new(MS(1), 1).record_answer(3, MS(1)), ProbeOutcome::Unknown);
    }

    #[test]
    fn a_reply_without_a_tag_belongs_to_the_oldest_probe_that_waits() {
        let mut ledger = with_probes(3);
        ledger.record_answer(0, MS(5));
        assert_eq!(ledger.oldest_waiting(), Some(1));
        ledger.expire(MS(10_000));
        assert_eq!(ledger.oldest_waiting(), Some(2));
    }
}
