//! Users that follow a test's script and log everything they learn.

use std::collections::BTreeMap;

use fathom_http::users::{
    AnswerDetail, BatchPosition, BodyFraming, MeasurePhase, UserAction, UserAnswer, UserFailure, UserFailureStage,
    UserRequest, UserSlot, Users, WorkerShare,
};
use fathom_model::units::Nanos;

/// The next action of a user, in the form that tests use.
pub(crate) enum ScriptedAction {
    Send(ScriptedRequest),
    /// For this long.
    Sleep(Nanos),
    Wait,
    CloseConnection,
    Leave,
}

/// A request, in the form that tests use.
pub(crate) struct ScriptedRequest {
    pub(crate) text: String,
    pub(crate) n_requests: u16,
    pub(crate) server: u16,
    pub(crate) framing: BodyFraming,
    pub(crate) detail: AnswerDetail,
    pub(crate) timeout: Nanos,
}

/// A GET request for `target`.
pub(crate) fn get(target: &str) -> ScriptedRequest {
    ScriptedRequest {
        text: format!("GET {target} HTTP/1.1\r\nHost: here\r\n\r\n"),
        n_requests: 1,
        server: 0,
        framing: BodyFraming::Body,
        detail: AnswerDetail::Message,
        timeout: Nanos::from_secs(20),
    }
}

/// An event that a user was informed of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UserEvent {
    Arrived { now: Nanos, late: Nanos },
    NextAction { now: Nanos },
    Answered(ReceivedAnswer),
    Failed { cause: String, stage: UserFailureStage, sent_at: Nanos, ended_at: Nanos },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReceivedAnswer {
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) body_bytes: u64,
    pub(crate) times: [Nanos; 3],
    pub(crate) place: BatchPosition,
    pub(crate) nth_connection: u32,
}

/// The events of one user since its arrival.
pub(crate) type EventLog = Vec<UserEvent>;

/// The results of all users of a worker.
#[derive(Debug, Default)]
pub(crate) struct EventLogs {
    /// By slot, with one log for each user that had the slot.
    pub(crate) by_slot: BTreeMap<u32, Vec<EventLog>>,
    pub(crate) phases: Vec<MeasurePhase>,
    pub(crate) start: Nanos,
    pub(crate) finished_at: Nanos,
}

impl EventLogs {
    /// The log of the only user, or of the first in the first slot.
    pub(crate) fn first(&self) -> &EventLog {
        &self.by_slot[&0][0]
    }
}

pub(crate) fn answers(memory: &EventLog) -> Vec<&ReceivedAnswer> {
    let answers =
        memory.iter().filter_map(|told| if let UserEvent::Answered(heard) = told { Some(heard) } else { None });
    answers.collect()
}

pub(crate) fn failures(memory: &EventLog) -> Vec<(&str, UserFailureStage)> {
    let failures = memory.iter().filter_map(|told| match told {
        UserEvent::Failed { cause, stage, .. } => Some((cause.as_str(), *stage)),
        _ => None,
    });
    failures.collect()
}

/// Says the next action of a user from its slot and its events.
pub(crate) type Script<'a> = dyn Fn(UserSlot, &EventLog) -> ScriptedAction + Sync + 'a;

/// Users that all follow one script. One type for all scripts: each would make the compiler write the loads once more.
pub(crate) struct ScriptedUsers<'a> {
    script: &'a Script<'a>,
    logs: EventLogs,
    /// The bytes of the request being sent.
    text: String,
    pub(crate) wakes: Vec<(Nanos, UserSlot)>,
    has_left: usize,
    ends_after: Option<usize>,
}

impl<'a> ScriptedUsers<'a> {
    pub(crate) fn new(row: &WorkerShare, script: &'a Script<'a>) -> Self {
        let memories = EventLogs { start: row.start, ..EventLogs::default() };
        Self { script, logs: memories, text: String::new(), wakes: Vec::new(), has_left: 0, ends_after: None }
    }

    /// Ends the trial of a worker when `n_left` users have left.
    pub(crate) fn ending_after(self, n_left: usize) -> Self {
        Self { ends_after: Some(n_left), ..self }
    }

    fn log(&mut self, slot: UserSlot) -> &mut EventLog {
        self.logs.by_slot.get_mut(&slot.0).unwrap().last_mut().unwrap()
    }
}

impl Users for ScriptedUsers<'_> {
    type Outcome = EventLogs;

    fn arrive(&mut self, slot: UserSlot, now: Nanos, late: Nanos) {
        self.logs.by_slot.entry(slot.0).or_default().push(vec![UserEvent::Arrived { now, late }]);
    }

    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_> {
        self.log(slot).push(UserEvent::NextAction { now });
        let act = (self.script)(slot, self.logs.by_slot[&slot.0].last().unwrap());
        match act {
            ScriptedAction::Send(ScriptedRequest { text, n_requests, server, framing, detail: wants, timeout }) => {
                self.text = text;
                UserAction::Send(UserRequest {
                    bytes: self.text.as_bytes(),
                    n_requests,
                    server,
                    framing,
                    detail: wants,
                    timeout,
                    may_repeat: true,
                })
            }
            ScriptedAction::Sleep(span) => UserAction::Sleep { until: now + span },
            ScriptedAction::Wait => {
                self.wakes.push((now + Nanos::from_millis(15), slot));
                UserAction::Wait
            }
            ScriptedAction::CloseConnection => UserAction::CloseConnection,
            ScriptedAction::Leave => {
                self.has_left += 1;
                UserAction::Leave
            }
        }
    }

    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) {
        let heard = ReceivedAnswer {
            status: answer.status,
            message: String::from_utf8_lossy(answer.message).into_owned(),
            body_bytes: answer.body_bytes,
            times: [answer.sent_at, answer.first_byte_at, answer.ended_at],
            place: answer.position,
            nth_connection: answer.connection_number,
        };
        self.log(slot).push(UserEvent::Answered(heard));
    }

    fn failed(&mut self, slot: UserSlot, failed: &UserFailure<'_>) {
        let UserFailure { cause, stage, sent_at, ended_at } = *failed;
        self.log(slot).push(UserEvent::Failed { cause: cause.to_owned(), stage, sent_at, ended_at });
    }

    fn next_woken(&mut self, now: Nanos) -> Option<UserSlot> {
        let due = self.wakes.iter().position(|(at, _)| *at <= now)?;
        Some(self.wakes.swap_remove(due).1)
    }

    fn is_over(&self) -> bool {
        self.ends_after.is_some_and(|n| self.has_left >= n)
    }

    fn on_phase(&mut self, window: MeasurePhase, _: Nanos) {
        self.logs.phases.push(window);
    }

    fn finish(mut self, now: Nanos) -> EventLogs {
        self.logs.finished_at = now;
        self.logs
    }
}
