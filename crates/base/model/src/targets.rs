//! Which targets behind one address answered, how their flows fared, and what happened meanwhile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Who answered for one address, as the initiator saw it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TargetsRecord {
    /// The address and port that were asked.
    pub address: String,
    /// The number of answers by target: its name and, for our own server, `#` and its token.
    pub answers: BTreeMap<String, u64>,
    /// The targets that are expected, each with its share of any scale; empty if any will do.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
    /// The number of targets that are expected; absent if any number will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_expected: Option<u64>,
    /// The flows that stayed open, if the test has such; those without any incident only while there is room for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<TargetFlow>,
    /// The number of flows without an incident that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_flows_unlisted: u64,
    /// What became of the messages by the time they were due, if the test has a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<FateBuckets>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Returns the name of a target without its token.
#[must_use]
pub fn target_name(identity: &str) -> &str {
    identity.split_once('#').map_or(identity, |(name, _)| name)
}

/// A flow that stays open, with what its messages met.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TargetFlow {
    /// Its first local address and port.
    pub id: String,
    /// The messages that were due.
    pub n_due: u64,
    /// The messages that were answered in time.
    pub n_answered: u64,
    /// The messages whose answer came after the timeout.
    pub n_late: u64,
    /// The messages without an answer.
    pub n_lost: u64,
    /// Those of the lost ones that were not sent, for want of a connection.
    pub n_unsent: u64,
    /// Answers that came once more.
    pub n_duplicates: u64,
    /// Answers that came after the answer to a later message.
    pub n_reordered: u64,
    /// Its connections, one after the other; one with datagrams.
    #[serde(default)]
    pub connections: Vec<FlowConnection>,
    /// The targets that answered, one after the other.
    pub spells: Vec<TargetSpell>,
    /// The times without an answer in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outages: Vec<FlowOutage>,
}

/// A connection of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowConnection {
    /// Its local address and port.
    pub local: String,
    /// When it was open, since the start.
    pub from_ns: Nanos,
    /// When it ended; absent if it lasted to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_ns: Option<Nanos>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<OutageCause>,
    /// The messages that were sent on it.
    pub n_sent: u64,
    /// Those that were answered, in time or late.
    pub n_answered: u64,
    /// Who answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// A time in which one target answered a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TargetSpell {
    /// The target.
    pub target: String,
    /// When the first message that it answered was due, since the start.
    pub from_ns: Nanos,
    /// When the last one was due.
    pub to_ns: Nanos,
    /// The number of the flow's connection, from 0.
    pub connection: u32,
}

/// A time in which no message of a flow was answered in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlowOutage {
    /// When the first message that was not answered in time was due, since the start.
    pub from_ns: Nanos,
    /// When the next message that was answered in time was due; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_ns: Option<Nanos>,
    /// The messages lost in it.
    pub n_lost: u64,
    /// The messages that were answered late in it.
    #[serde(default)]
    pub n_late: u64,
    /// How it began.
    pub cause: OutageCause,
    /// The time from the end of the connection to the next one; absent if the connection did not end, or never came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconnect_ns: Option<Nanos>,
}

/// How a flow stopped being answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutageCause {
    /// The connection was reset.
    Reset,
    /// The other end closed the connection.
    Closed,
    /// The port was refused: by a reset of a connect, or by ICMP.
    Refused,
    /// The network or host was reported unreachable.
    Unreachable,
    /// The connection was given up because nothing came back.
    TimedOut,
    /// Answers were missing or late, and the flow went on by itself.
    Silent,
}

impl OutageCause {
    /// Every cause, in the order of tables.
    pub const ALL: [Self; 6] =
        [Self::Reset, Self::Closed, Self::Refused, Self::Unreachable, Self::TimedOut, Self::Silent];

    /// The words used in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed out",
            Self::Silent => "silent",
        }
    }
}

/// The fates of messages in equal times, by when they were due.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FateBuckets {
    /// The length of each.
    pub width_ns: Nanos,
    /// The messages that were due.
    pub due: Vec<u64>,
    /// Those that were answered in time.
    pub answered: Vec<u64>,
    /// Those whose answer came late.
    pub late: Vec<u64>,
    /// Those without an answer.
    pub lost: Vec<u64>,
}

/// Something that a plan let happen during a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EventRecord {
    /// The event as the plan has it: `4s ip link set eth1 down`.
    pub event: String,
    /// When it was due, since the start.
    pub due_ns: Nanos,
    /// When it began, since the start; absent if the trial was over before it was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_ns: Option<Nanos>,
    /// How often a repeated event ran; absent for one that happens once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_runs: Option<u64>,
    /// How long it took, all runs together; absent if it was still running at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ns: Option<Nanos>,
    /// Its exit status; absent if it has none, as after a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Why it failed, in words; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The time of an event of a trial, from its begin until it was undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventSpan<'a> {
    /// Its record.
    pub event: &'a EventRecord,
    /// When it began, since the start.
    pub from: Nanos,
    /// When it was undone; absent if that was after the end of the trial.
    pub until: Option<Nanos>,
}

impl<'a> EventSpan<'a> {
    /// The words before an event in the record of its end.
    pub const END_OF: &'static str = "end of ";

    /// Returns the spans of all events that began and did not fail.
    #[must_use]
    pub fn all(events: &'a [EventRecord]) -> Vec<Self> {
        let is_end_of = |end: &&EventRecord, event: &EventRecord| {
            end.event.strip_prefix(Self::END_OF) == Some(&event.event) && end.failure.is_none()
        };
        let begun = events.iter().filter(|event| !event.event.starts_with(Self::END_OF) && event.failure.is_none());
        let span = |event: &'a EventRecord| {
            let end = events.iter().find(|end| is_end_of(end, event));
            Some(Self { event, from: event.began_ns?, until: end.and_then(|end| end.began_ns) })
        };
        begun.filter_map(span).collect()
    }
}

/// What the trials of a test say about the targets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TargetsSummary {
    /// Each target, by name. Expected targets without an answer are among them.
    pub targets: Vec<TargetShare>,
    /// The comparison of the counts with the expected shares; absent for one target alone, or if one is not expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<ShareFit>,
    /// Names that more than one target has, although the weights are by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ambiguous: Vec<String>,
    /// What each event of each round did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<EventEffect>,
}

/// The answers of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TargetShare {
    /// Its name, with its token where another one has the same name.
    pub name: String,
    /// How often it answered.
    pub n: u64,
    /// Its expected share of all, 0 to 1; absent for one that is not expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
}

/// Pearson's chi-square test of counts against expected shares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ShareFit {
    /// The statistic.
    pub chi_square: f64,
    /// The degrees of freedom.
    pub degrees: u64,
    /// The probability of a statistic at least as large, if every answer falls by the shares and independently.
    pub p: f64,
}

/// What became of flows after one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EventEffect {
    /// The round, from 0.
    pub round: u32,
    /// The event.
    pub event: EventRecord,
    /// The flows.
    pub n_flows: u64,
    /// The targets that answered nobody afterwards.
    pub lost_targets: Vec<String>,
    /// The flows of those: the least that can be hurt.
    pub n_own: u64,
    /// Other flows with an outage, or that moved to another target.
    pub n_collateral: u64,
    /// The longest outage of a flow that began with the event and ended; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_ns: Option<Nanos>,
    /// The flows whose outage lasted to the end.
    pub n_unrecovered: u64,
    /// The messages that were lost in those outages.
    pub n_lost: u64,
}

impl TargetsRecord {
    /// Returns the answers of the trials of a test together.
    #[must_use]
    pub fn sum_of<'a>(records: impl IntoIterator<Item = &'a Self>) -> BTreeMap<&'a str, u64> {
        let mut all = BTreeMap::new();
        for (target, n) in records.into_iter().flat_map(|record| &record.answers) {
            *all.entry(target.as_str()).or_default() += n;
        }
        all
    }

    /// Returns the expected targets that gave no answer, by name.
    #[must_use]
    pub fn missing<'a>(&'a self, answers: &BTreeMap<&str, u64>) -> Vec<&'a str> {
        let answered = |name: &str| answers.iter().any(|(target, n)| target_name(target) == name && *n > 0);
        self.weights.keys().map(String::as_str).filter(|name| !answered(name)).collect()
    }
}

impl TargetFlow {
    /// Returns the number of connections that ended before the test did.
    #[must_use]
    pub fn n_broken(&self) -> u64 {
        let n = self.connections.iter().filter(|connection| connection.cause.is_some()).count();
        u64::try_from(n).unwrap_or(u64::MAX)
    }

    /// Returns the times at which another target answered on the same connection.
    pub fn moves(&self) -> impl Iterator<Item = (&TargetSpell, &TargetSpell)> {
        let pairs = self.spells.windows(2).map(|pair| (&pair[0], &pair[1]));
        pairs.filter(|(before, after)| before.connection == after.connection && before.target != after.target)
    }

    /// Returns the last target that answered before a time.
    #[must_use]
    pub fn target_before(&self, at: Nanos) -> Option<&str> {
        self.spells.iter().rev().find(|spell| spell.from_ns < at).map(|spell| spell.target.as_str())
    }

    /// Returns the first target that answered at a time or later.
    #[must_use]
    pub fn target_from(&self, at: Nanos) -> Option<&str> {
        self.spells.iter().find(|spell| spell.to_ns >= at).map(|spell| spell.target.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(target: &str, (from, to): (u64, u64), connection: u32) -> TargetSpell {
        TargetSpell { target: target.to_owned(), from_ns: Nanos(from), to_ns: Nanos(to), connection }
    }

    #[test]
    fn another_target_on_a_new_connection_is_no_move() {
        let spells = vec![spell("a", (0, 10), 0), spell("b", (20, 30), 1), spell("a", (31, 40), 1)];
        let flow = TargetFlow { spells, ..TargetFlow::default() };
        let moves: Vec<_> = flow.moves().map(|(_, after)| after.from_ns).collect();
        assert_eq!(moves, [Nanos(31)]);
        assert_eq!((flow.target_before(Nanos(20)), flow.target_from(Nanos(11))), (Some("a"), Some("b")));
        assert_eq!((flow.target_before(Nanos(0)), flow.target_from(Nanos(41))), (None, None));
    }

    #[test]
    fn an_expected_target_is_missing_until_it_answers() {
        let record = TargetsRecord {
            answers: [("t1#a".to_owned(), 3)].into(),
            weights: [("t1".to_owned(), 1.0), ("t2".to_owned(), 1.0)].into(),
            ..TargetsRecord::default()
        };
        let answers = TargetsRecord::sum_of([&record, &record]);
        assert_eq!((answers["t1#a"], record.missing(&answers)), (6, vec!["t2"]));
    }
}
