//! What became of the requests of a recording that was sent again, and how the answers compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{histogram::Histogram, units::Nanos};

/// What is sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayUnit {
    /// Requests of HTTP.
    #[default]
    Request,
    /// What the client of a TCP connection sent before it waited.
    Turn,
    /// Datagrams of UDP.
    Datagram,
}

impl ReplayUnit {
    /// The word for one.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Turn => "turn",
            Self::Datagram => "datagram",
        }
    }

    /// Whether it is the usual one, which a document does not name.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// What became of each request of a recording in one trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReplayRecord {
    /// What the numbers below count.
    #[serde(default, skip_serializing_if = "ReplayUnit::is_usual")]
    pub unit: ReplayUnit,
    /// Requests of the recording, whole or not.
    pub n_recorded: u64,
    /// Those that were not to be sent, by the reason.
    pub left_out: BTreeMap<String, u64>,
    /// The connections of the recording with the others.
    pub n_sessions: u64,
    /// The connections of the recording of which nothing is sent, by the reason. What was sent on them is in no other count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out_sessions: BTreeMap<String, u64>,
    /// How often each of the others was to be sent.
    pub n_copies: u64,
    /// The time from the first of them to the last in the recording.
    pub recorded_span_ns: Nanos,
    /// Sent, with a whole answer.
    pub n_answered: u64,
    /// Sent, and the recording has no answer to them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_answerless: u64,
    /// Sent, with an answer that was shorter than the recorded one when it was waited for no longer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_short: u64,
    /// Without a whole answer; the errors of the record have the causes.
    pub n_failed: u64,
    /// Not sent because their connection had failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_behind_failure: u64,
    /// Waiting for their answers when the trial ended.
    pub n_cut_off: u64,
    /// Not sent before the trial ended.
    pub n_not_sent: u64,
    /// Of all that were sent, those that were sent once more because the server had closed their connection without answering.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_sent_again: u64,
    /// Not sent because as many connections as may be open were busy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_without_connection: u64,
    /// How the answers compare with those of the recording; absent unless they were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<ComparedAnswers>,
}

impl ReplayRecord {
    /// The requests that were to be sent, copies included.
    #[must_use]
    pub fn n_to_send(&self) -> u64 {
        self.n_recorded.saturating_sub(self.left_out.values().sum()) * self.n_copies
    }

    /// Those that were sent, or that cannot be any more.
    #[must_use]
    pub fn n_told(&self) -> u64 {
        let n_sent = self.n_answered + self.n_answerless + self.n_short + self.n_failed + self.n_cut_off;
        n_sent + self.n_behind_failure + self.n_without_connection
    }

    /// Adds what became of requests in another trial of the same recording.
    pub fn merge(&mut self, other: &Self) {
        self.n_recorded += other.n_recorded;
        add(&mut self.left_out, &other.left_out);
        self.n_sessions += other.n_sessions;
        self.n_copies = self.n_copies.max(other.n_copies);
        self.recorded_span_ns = self.recorded_span_ns.max(other.recorded_span_ns);
        add(&mut self.left_out_sessions, &other.left_out_sessions);
        self.n_answered += other.n_answered;
        self.n_answerless += other.n_answerless;
        self.n_short += other.n_short;
        self.n_failed += other.n_failed;
        self.n_behind_failure += other.n_behind_failure;
        self.n_cut_off += other.n_cut_off;
        self.n_not_sent += other.n_not_sent;
        self.n_sent_again += other.n_sent_again;
        self.n_without_connection += other.n_without_connection;
        if let Some(compared) = &other.compared {
            self.compared.get_or_insert_default().merge(compared);
        }
    }
}

/// Answers beside those of the recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ComparedAnswers {
    /// Answers that say the same.
    pub n_same: u64,
    /// Answers that differ in at least one way.
    pub n_different: u64,
    /// Answers that the recording lacks, in whole or in part.
    pub n_without_recorded: u64,
    /// The ways in which answers differ, the most frequent first. An answer may differ in several.
    pub differences: Vec<AnswerDifference>,
    /// Differences of further groups, which are not told apart.
    pub n_further: u64,
    /// How much longer answers took than in the recording, in nanoseconds; only those that took longer.
    pub slower: Histogram,
    /// How much shorter the others took, in nanoseconds.
    pub faster: Histogram,
}

impl ComparedAnswers {
    /// Adds the answers of another worker or trial.
    pub fn merge(&mut self, other: &Self) {
        self.n_same += other.n_same;
        self.n_different += other.n_different;
        self.n_without_recorded += other.n_without_recorded;
        self.n_further += other.n_further;
        for difference in &other.differences {
            let is_alike = |known: &&mut AnswerDifference| {
                (&known.what, &known.requests) == (&difference.what, &difference.requests)
            };
            match self.differences.iter_mut().find(is_alike) {
                Some(known) => known.n += difference.n,
                None => self.differences.push(difference.clone()),
            }
        }
        self.differences
            .sort_by(|one, other| (other.n, &one.what, &one.requests).cmp(&(one.n, &other.what, &other.requests)));
        self.slower.merge(&other.slower);
        self.faster.merge(&other.faster);
    }
}

/// Answers that differ from those of the recording in the same way, to requests of the same form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AnswerDifference {
    /// The difference: `status 200 is now 503`.
    pub what: String,
    /// The method and the path of the requests, with `*` for parts that have digits: `GET /orders/*`.
    pub requests: String,
    /// The number of answers.
    pub n: u64,
    /// One of them.
    pub example: DifferenceExample,
}

/// One answer that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DifferenceExample {
    /// The method and the path of its request, without the query.
    pub request: String,
    /// In the recording.
    pub recorded: String,
    /// In this run.
    pub replayed: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn add(into: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>) {
    for (name, n) in from {
        *into.entry(name.clone()).or_default() += n;
    }
}

/// What became of the requests of a recording over all trials of a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReplaySummary {
    /// The sums of all trials.
    pub all: ReplayRecord,
    /// How much longer answers took than in the recording, request by request; absent unless they were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paired: Option<PairedTimes>,
}

/// The times of answers minus those of the recording, paired by request, in nanoseconds; negative where answers came sooner.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PairedTimes {
    /// The number of pairs.
    pub n: u64,
    /// The share of answers that took longer.
    pub slower_ratio: f64,
    /// The median of the differences.
    pub median_ns: f64,
    /// Its 95 % interval, from the order of the differences; absent for fewer than six, between which it need not lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ns: Option<(f64, f64)>,
}
