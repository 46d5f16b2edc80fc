//! What became of each message of one flow. No I/O, no clock: the caller tells what happened and when.
//!
//! All times are since the start of the trial. Message `k` of a flow is due at `first + k * interval`, whether earlier ones are answered or
//! not, so that a time without answers is as long as it is and not as short as the flow makes it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fathom_model::{FlowConnection, FlowOutage, OutageCause, TargetFlow, TargetSpell, units::Nanos};

use crate::identity::Identity;

/// When the messages of a flow are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowSchedule {
    pub(super) first: Nanos,
    pub(super) interval: Nanos,
    /// An answer after this time is late.
    pub(super) timeout: Nanos,
}

impl FlowSchedule {
    pub(super) fn due(self, number: u64) -> Nanos {
        self.first + self.interval * number
    }
}

/// What an answer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// The first answer to its message, after this time since it was due.
    InTime(Nanos),
    /// The first answer, after the timeout.
    Late(Nanos),
    /// One more answer to a message.
    Duplicate,
    /// An answer to a message that was not sent.
    Stray,
}

/// The end of a connection and the beginning of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConnectionBreak {
    at: Nanos,
    cause: OutageCause,
    /// False for a refused datagram, after which the flow goes on.
    ends_connection: bool,
    reconnected: Option<Nanos>,
}

/// One flow.
#[derive(Debug)]
pub(super) struct FlowTrack {
    schedule: FlowSchedule,
    id: String,
    n_due: u64,
    /// The messages that wait for an answer, by number, in order.
    waiting: VecDeque<u64>,
    /// The messages whose time is over, or that could not be sent.
    lost: BTreeSet<u64>,
    /// The late ones among those that were lost before.
    late: BTreeSet<u64>,
    unsent: u64,
    answered: u64,
    duplicates: u64,
    reordered: u64,
    newest_answered: Option<u64>,
    connection: u32,
    connections: Vec<FlowConnection>,
    /// Who answered last on this connection, for servers that tell it once.
    known: Option<Identity>,
    spells: Vec<TargetSpell>,
    /// The answers in each spell.
    spell_answers: Vec<u64>,
    breaks: Vec<ConnectionBreak>,
    /// Since when an answer is owed on this connection and nothing came; absent if none is.
    owed_since: Option<Nanos>,
}

/// What is counted of a flow and of all.
pub(super) struct FinishedFlow {
    pub(super) flow: TargetFlow,
    /// The answers by target.
    pub(super) answers: BTreeMap<String, u64>,
    /// The times at which messages were due that were lost, and that were late.
    pub(super) lost_due: Vec<Nanos>,
    pub(super) late_due: Vec<Nanos>,
}

impl FlowTrack {
    pub(super) fn new(schedule: FlowSchedule) -> Self {
        Self {
            schedule,
            id: String::new(),
            n_due: 0,
            waiting: VecDeque::new(),
            lost: BTreeSet::new(),
            late: BTreeSet::new(),
            unsent: 0,
            answered: 0,
            duplicates: 0,
            reordered: 0,
            newest_answered: None,
            connection: 0,
            connections: Vec::new(),
            known: None,
            spells: Vec::new(),
            spell_answers: Vec::new(),
            breaks: Vec::new(),
            owed_since: None,
        }
    }

    pub(super) const fn schedule(&self) -> FlowSchedule {
        self.schedule
    }

    /// When the next message is due.
    pub(super) fn next_due(&self) -> Nanos {
        self.schedule.due(self.n_due)
    }

    /// The messages that are due by now and not taken off the schedule.
    pub(super) fn n_left(&self, now: Nanos) -> u64 {
        let due = self.next_due();
        if due > now { 0 } else { now.since(due).0 / self.schedule.interval.0.max(1) + 1 }
    }

    /// Takes the next message off the schedule, to be sent. Returns its number.
    pub(super) fn take_due(&mut self) -> u64 {
        let number = self.n_due;
        self.n_due += 1;
        self.waiting.push_back(number);
        self.owed_since.get_or_insert(self.schedule.due(number));
        if let Some(connection) = self.connections.last_mut() {
            connection.n_sent += 1;
        }
        number
    }

    /// The message taken last could not be sent.
    pub(super) fn not_sent(&mut self) {
        if let Some(number) = self.waiting.pop_back() {
            self.lost.insert(number);
            self.unsent += 1;
            if let Some(connection) = self.connections.last_mut() {
                connection.n_sent -= 1;
            }
        }
    }

    /// An answer arrived.
    pub(super) fn answered(&mut self, number: u64, identity: Option<Identity>, now: Nanos) -> AnswerKind {
        if number >= self.n_due {
            return AnswerKind::Stray;
        }
        let took = now.since(self.schedule.due(number));
        let Some(place) = self.waiting.iter().position(|waiting| *waiting == number) else {
            self.owed_since = self.owed_since.map(|_| now);
            return self.answered_again(number, identity, took);
        };
        self.waiting.remove(place);
        self.owed_since = (!self.waiting.is_empty()).then_some(now);
        let kind = if took > self.schedule.timeout {
            self.late.insert(number);
            AnswerKind::Late(took)
        } else {
            self.answered += 1;
            AnswerKind::InTime(took)
        };
        self.note_order(number);
        self.note_target(number, identity);
        kind
    }

    /// An answer to a message that waits no longer: one that was lost comes late, any other comes twice.
    fn answered_again(&mut self, number: u64, identity: Option<Identity>, took: Nanos) -> AnswerKind {
        if self.lost.remove(&number) {
            self.late.insert(number);
            self.note_order(number);
            self.note_target(number, identity);
            return AnswerKind::Late(took);
        }
        self.duplicates += 1;
        AnswerKind::Duplicate
    }

    fn note_order(&mut self, number: u64) {
        if self.newest_answered.is_some_and(|newest| newest > number) {
            self.reordered += 1;
        }
        self.newest_answered = self.newest_answered.max(Some(number));
    }

    fn note_target(&mut self, number: u64, identity: Option<Identity>) {
        if identity.is_some() {
            self.known = identity;
        }
        if let Some(connection) = self.connections.last_mut() {
            connection.n_answered += 1;
        }
        let Some(target) = self.known.as_ref().map(ToString::to_string) else { return };
        if let Some(connection) = self.connections.last_mut() {
            connection.target = Some(target.clone());
        }
        let due = self.schedule.due(number);
        match self.spells.last_mut() {
            Some(spell) if spell.target == target && spell.connection == self.connection => {
                spell.to_ns = spell.to_ns.max(due);
                spell.from_ns = spell.from_ns.min(due);
            }
            _ => {
                self.spells.push(TargetSpell { target, from_ns: due, to_ns: due, connection: self.connection });
                self.spell_answers.push(0);
            }
        }
        if let Some(n) = self.spell_answers.last_mut() {
            *n += 1;
        }
    }

    /// Gives up the messages that have waited for longer than the timeout.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(oldest) = self.waiting.front().copied() {
            if now.since(self.schedule.due(oldest)) <= self.schedule.timeout {
                break;
            }
            self.waiting.pop_front();
            self.lost.insert(oldest);
        }
    }

    /// Whether an answer is owed on this connection, and nothing has come for so long.
    pub(super) fn is_silent_for(&self, span: Nanos, now: Nanos) -> bool {
        self.owed_since.is_some_and(|since| now.since(since) >= span)
    }

    /// The connection is over: what was sent on it is not answered any more.
    pub(super) fn broke(&mut self, at: Nanos, cause: OutageCause) {
        self.lost.extend(self.waiting.drain(..));
        (self.known, self.owed_since) = (None, None);
        // A connect that fails belongs to the break before it.
        if self.breaks.last().is_none_or(|last| last.reconnected.is_some()) {
            self.breaks.push(ConnectionBreak { at, cause, ends_connection: true, reconnected: None });
            if let Some(connection) = self.connections.last_mut() {
                (connection.to_ns, connection.cause) = (Some(at), Some(cause));
            }
        }
    }

    /// A connection is open, from this local address.
    pub(super) fn connected(&mut self, at: Nanos, local: &str) {
        if self.id.is_empty() {
            local.clone_into(&mut self.id);
        }
        if let Some(last) = self.breaks.last_mut().filter(|last| last.reconnected.is_none()) {
            last.reconnected = Some(at);
            self.connection += 1;
        }
        self.connections.push(FlowConnection {
            local: local.to_owned(),
            from_ns: at,
            to_ns: None,
            cause: None,
            n_sent: 0,
            n_answered: 0,
            target: None,
        });
    }

    /// A datagram was refused: the flow goes on.
    pub(super) fn refused(&mut self, at: Nanos, cause: OutageCause) {
        if self.breaks.last().is_none_or(|last| at.since(last.at) > self.schedule.timeout) {
            self.breaks.push(ConnectionBreak { at, cause, ends_connection: false, reconnected: Some(at) });
        }
    }

    /// The messages that still wait.
    pub(super) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Ends the flow: what still waits is lost.
    pub(super) fn finish(mut self) -> FinishedFlow {
        self.lost.extend(self.waiting.drain(..));
        let outages = self.outages();
        let due = |numbers: &BTreeSet<u64>| numbers.iter().map(|number| self.schedule.due(*number)).collect();
        let (lost_due, late_due) = (due(&self.lost), due(&self.late));
        let mut answers: BTreeMap<String, u64> = BTreeMap::new();
        for (spell, n) in self.spells.iter().zip(&self.spell_answers) {
            *answers.entry(spell.target.clone()).or_default() += n;
        }
        let flow = TargetFlow {
            id: self.id,
            n_due: self.n_due,
            n_answered: self.answered,
            n_late: count(self.late.len()),
            n_lost: count(self.lost.len()),
            n_unsent: self.unsent,
            n_duplicates: self.duplicates,
            n_reordered: self.reordered,
            connections: self.connections,
            spells: self.spells,
            outages,
        };
        FinishedFlow { flow, answers, lost_due, late_due }
    }

    /// Returns the runs of messages without an answer in time.
    fn outages(&self) -> Vec<FlowOutage> {
        let mut outages: Vec<FlowOutage> = Vec::new();
        let mut run: Option<(u64, u64)> = None;
        for number in self.lost.union(&self.late).copied().chain([u64::MAX]) {
            match &mut run {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => {
                    outages.extend(run.map(|run| self.outage(run)));
                    run = Some((number, number));
                }
            }
        }
        outages
    }

    fn outage(&self, (first, last): (u64, u64)) -> FlowOutage {
        let from_ns = self.schedule.due(first);
        let to_ns = (last + 1 < self.n_due).then(|| self.schedule.due(last + 1));
        let until = to_ns.unwrap_or(Nanos::MAX);
        // The connection may have ended before the first message that met it, and at the latest when its answer was due.
        let earliest = from_ns.since(self.schedule.interval);
        let broken = self.breaks.iter().find(|broken| broken.at >= earliest && broken.at <= until);
        FlowOutage {
            from_ns,
            to_ns,
            n_lost: count(self.lost.range(first..=last).count()),
            n_late: count(self.late.range(first..=last).count()),
            cause: broken.map_or(OutageCause::Silent, |broken| broken.cause),
            reconnect_ns: broken
                .filter(|broken| broken.ends_connection)
                .and_then(|broken| Some(broken.reconnected?.since(broken.at))),
        }
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A flow with a message each 10 ms from 5 ms on, that waits for 100 ms.
    fn flow() -> FlowTrack {
        let ms = Nanos::from_millis;
        let mut track = FlowTrack::new(FlowSchedule { first: ms(5), interval: ms(10), timeout: ms(100) });
        track.connected(Nanos::ZERO, "10.0.0.1:5");
        track
    }

    fn at(ms: u64) -> Nanos {
        Nanos(ms * MS)
    }

    fn target(name: &str) -> Identity {
        Identity::new(name, 0)
    }

    #[test]
    fn a_reset_loses_what_was_sent_and_what_could_not_be_sent() {
        let mut flow = flow();
        for number in 0..5 {
            assert_eq!(flow.take_due(), number);
            assert_eq!(flow.answered(number, Some(target("t1")), at(6 + 10 * number)), AnswerKind::InTime(at(1)));
        }
        flow.take_due();
        flow.broke(at(56), OutageCause::Reset);
        for _ in 0..2 {
            flow.take_due();
            flow.not_sent();
        }
        flow.connected(at(80), "10.0.0.1:6");
        flow.take_due();
        flow.answered(8, Some(target("t2")), at(86));
        let FinishedFlow { flow, answers, lost_due, .. } = flow.finish();
        let outage = FlowOutage {
            from_ns: at(55),
            to_ns: Some(at(85)),
            n_lost: 3,
            n_late: 0,
            cause: OutageCause::Reset,
            reconnect_ns: Some(at(24)),
        };
        assert_eq!((flow.outages.as_slice(), flow.n_lost, flow.n_unsent), (&[outage][..], 3, 2));
        assert_eq!((flow.n_due, flow.n_answered, lost_due.len()), (9, 6, 3));
        assert_eq!((answers["t1"], answers["t2"], flow.moves().count()), (5, 1, 0));
        assert_eq!((flow.target_before(at(55)), flow.target_from(at(85))), (Some("t1"), Some("t2")));
    }

    #[test]
    fn what_is_due_and_not_taken_is_left() {
        let mut flow = flow();
        assert_eq!((flow.n_left(at(4)), flow.n_left(at(5)), flow.n_left(at(24)), flow.n_left(at(25))), (0, 1, 2, 3));
        flow.take_due();
        assert_eq!(flow.n_left(at(25)), 2);
    }

    #[test]
    fn another_target_on_the_same_connection_is_a_move() {
        let mut flow = flow();
        for (number, name) in ["t1", "t1", "t2", "t1"].into_iter().enumerate() {
            flow.take_due();
            flow.answered(u64::try_from(number).unwrap(), Some(target(name)), at(100));
        }
        let FinishedFlow { flow, answers, .. } = flow.finish();
        assert_eq!((flow.moves().count(), flow.outages.len()), (2, 0));
        assert_eq!((answers["t1"], answers["t2"]), (3, 1));
    }

    #[test]
    fn an_answer_after_the_timeout_is_late_and_a_second_one_is_a_duplicate() {
        let mut flow = flow();
        for _ in 0..3 {
            flow.take_due();
        }
        flow.answered(1, Some(target("t1")), at(20));
        flow.expire(at(106));
        assert_eq!(flow.n_waiting(), 1, "number 2 was due at 25 ms");
        assert_eq!(flow.answered(0, Some(target("t1")), at(110)), AnswerKind::Late(at(105)));
        assert_eq!(flow.answered(1, Some(target("t1")), at(111)), AnswerKind::Duplicate);
        assert_eq!(flow.answered(7, Some(target("t1")), at(112)), AnswerKind::Stray);
        let FinishedFlow { flow, late_due, .. } = flow.finish();
        assert_eq!((flow.n_answered, flow.n_late, flow.n_lost, flow.n_duplicates, flow.n_reordered), (1, 1, 1, 1, 1));
        assert_eq!(late_due, [at(5)]);
        let outages: Vec<_> = flow.outages.iter().map(|outage| (outage.n_lost, outage.n_late, outage.to_ns)).collect();
        assert_eq!(outages, [(0, 1, Some(at(15))), (1, 0, None)], "a late answer does not end an outage");
        assert_eq!(flow.outages[1].cause, OutageCause::Silent);
        assert_eq!(flow.n_due, flow.n_answered + flow.n_late + flow.n_lost, "every message has one fate");
    }

    #[test]
    fn silence_counts_from_the_oldest_message_without_an_answer() {
        let mut flow = flow();
        assert!(!flow.is_silent_for(at(50), at(500)), "nothing was sent");
        flow.take_due();
        flow.answered(0, Some(target("t1")), at(6));
        assert!(!flow.is_silent_for(at(50), at(500)), "everything is answered");
        flow.take_due();
        assert!(!flow.is_silent_for(at(50), at(60)) && flow.is_silent_for(at(50), at(65)));
        flow.expire(at(400));
        assert!(flow.is_silent_for(at(50), at(400)), "what is lost is not answered either");
    }

    #[test]
    fn a_server_that_tells_its_name_once_is_known_for_the_connection() {
        let mut flow = flow();
        for (number, identity) in [(0, Some(target("t1"))), (1, None)] {
            flow.take_due();
            flow.answered(number, identity, at(20));
        }
        flow.broke(at(21), OutageCause::Closed);
        flow.connected(at(22), "10.0.0.1:6");
        flow.take_due();
        flow.answered(2, None, at(26));
        let FinishedFlow { flow, .. } = flow.finish();
        assert_eq!((flow.spells.len(), flow.spells[0].to_ns), (1, at(15)));
    }

    #[test]
    fn refusals_of_datagrams_are_the_cause_and_the_flow_stays() {
        let mut flow = flow();
        for number in 0..4 {
            flow.take_due();
            if number == 0 || number == 3 {
                flow.answered(number, Some(target("t1")), at(6 + number * 10));
            } else {
                flow.refused(at(6 + number * 10), OutageCause::Refused);
            }
        }
        let FinishedFlow { flow, .. } = flow.finish();
        assert_eq!((flow.outages.len(), flow.outages[0].cause, flow.outages[0].n_lost), (1, OutageCause::Refused, 2));
        assert_eq!(flow.spells.len(), 1);
    }
}
