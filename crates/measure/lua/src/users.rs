//! The connections of one thread of a script: their requests, and the calls into the script.

use std::sync::{Arc, atomic::Ordering};

use fathom_http::users::{
    AnswerDetail, BatchPosition, BodyFraming, MeasurePhase, UserAction, UserAnswer, UserFailure, UserRequest, UserSlot,
    Users,
};
use fathom_model::{Histogram, units::Nanos};
use mlua::{BString, Function, LuaString, Value};

use super::{
    answer::{AnswerParts, ResponseArguments},
    fault::{ScriptFault, ScriptFaultCounts},
    heartbeat::Callback,
    state::{LuaState, ThreadFacts},
};

/// How long a connection rests after its script failed to produce a request, so that a script that always fails costs little.
const FAILURE_PAUSE: Nanos = Nanos::from_millis(10);
/// The longest accepted delay, in milliseconds: a day, like the longest trial.
const DELAY_MS_MAX: f64 = 86_400_000.0;
const NANOS_PER_MICRO: u64 = 1000;

/// The features of a script, determined on its first thread for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScriptFeatures {
    /// Whether the script makes each request.
    pub(super) is_dynamic: bool,
    pub(super) has_delay: bool,
    pub(super) reads_answers: bool,
    /// The number of requests in the result of `request`.
    pub(super) depth: u16,
}

/// A thread that is ready to start.
#[derive(Debug)]
pub(super) struct LuaThread {
    pub(super) state: LuaState,
    pub(super) facts: Arc<ThreadFacts>,
    /// The bytes to send if the script makes no requests.
    pub(super) fixed: Vec<u8>,
    /// The index of its server among those of the trial.
    pub(super) server: u16,
}

/// The results of a thread.
#[derive(Debug)]
pub(super) struct LuaResults {
    /// The state, which `done` may read.
    pub(super) state: LuaState,
    pub(super) faults: ScriptFaultCounts,
    /// From the first byte of a batch of requests to the last byte of its last answer.
    pub(super) batches: Histogram,
}

/// The connections of one thread.
#[derive(Debug)]
pub(super) struct LuaUsers {
    thread: LuaThread,
    features: ScriptFeatures,
    timeout: Nanos,
    request: Function,
    delay: Function,
    response: Function,
    bytes: Vec<u8>,
    framing: BodyFraming,
    /// For each slot, whether the script is asked for a delay before the next request.
    is_delayed: Vec<bool>,
    response_arguments: ResponseArguments,
    answer_parts: AnswerParts,
    faults: ScriptFaultCounts,
    batches: Histogram,
}

fn framing(bytes: &[u8]) -> BodyFraming {
    if bytes.starts_with(b"HEAD ") { BodyFraming::NoBody } else { BodyFraming::Body }
}

impl LuaUsers {
    pub(super) fn new(thread: LuaThread, findings: ScriptFeatures, timeout: Nanos, n_slots: u32) -> Self {
        let way = |name| thread.state.entry_point(name);
        // Decided once for all threads, as in wrk.
        let looks = if findings.reads_answers { way("looks").call(()).unwrap_or(0) } else { 0 };
        Self {
            timeout,
            request: way("request"),
            delay: way("delay"),
            response: way("response"),
            framing: framing(&thread.fixed),
            bytes: thread.fixed.clone(),
            is_delayed: vec![findings.has_delay; n_slots as usize],
            response_arguments: ResponseArguments(looks),
            answer_parts: AnswerParts::default(),
            faults: ScriptFaultCounts::default(),
            batches: Histogram::new(),
            thread,
            features: findings,
        }
    }

    /// The fault of an unusable return value of a script's function.
    fn fault(&self, callback: Callback, what: &str) -> ScriptFault {
        let state = &self.thread.state;
        ScriptFault::new(format!("{}: returned {what}", state.script.path), callback, state.heartbeat.owner)
    }

    /// Asks the script how long to wait, in milliseconds.
    fn delay(&mut self) -> Result<Nanos, ScriptFault> {
        let state = &self.thread.state;
        let value: mlua::Result<Value> = state.heartbeat.within(Callback::Delay, || self.delay.call(()));
        let value = value.map_err(|error| state.fault(Callback::Delay, &error))?;
        delay_of(&value).map_err(|what| self.fault(Callback::Delay, &what))
    }

    /// Lets the script write the next request into the buffer.
    fn call_request(&mut self, slot: UserSlot) -> Result<(), ScriptFault> {
        let state = &self.thread.state;
        // As bytes and not as a Lua string, whose handle would cost as much as the call.
        let returned: mlua::Result<(Option<BString>, Value)> =
            state.heartbeat.within(Callback::Request, || self.request.call(slot.0));
        match returned.map_err(|error| state.fault(Callback::Request, &error))? {
            (Some(bytes), _) => self.bytes = bytes.into(),
            (None, value) => return Err(self.fault(Callback::Request, &format!("{}, not a request", shown(&value)))),
        }
        if self.bytes.is_empty() {
            return Err(self.fault(Callback::Request, "an empty string, not a request"));
        }
        self.framing = framing(&self.bytes);
        Ok(())
    }

    /// Passes an answer to the script; repeats the call with more of it if the script has begun to read more.
    fn call_response(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) -> mlua::Result<()> {
        loop {
            let (head, body) = self.answer_parts.take(answer, self.response_arguments);
            let lua = &self.thread.state.lua;
            let string = |bytes: Option<&[u8]>| bytes.map(|bytes| lua.create_string(bytes)).transpose();
            let (head, body): (Option<LuaString>, Option<LuaString>) = (string(head)?, string(body)?);
            let looks = self.response_arguments.0;
            let more: Option<u8> = if self.response_arguments.needs_context() {
                let n_slots = u32::try_from(self.is_delayed.len()).unwrap_or(u32::MAX);
                let connection = u64::from(slot.0) + 1 + u64::from(n_slots) * u64::from(answer.connection_number);
                let since = |at: Nanos| at.since(answer.sent_at).0 / NANOS_PER_MICRO;
                let times = (answer.sent_at.0 / NANOS_PER_MICRO, since(answer.first_byte_at), since(answer.ended_at));
                let context = (slot.0, connection, times.0, times.1, times.2);
                self.response.call((
                    answer.status,
                    head,
                    body,
                    looks,
                    context.0,
                    context.1,
                    context.2,
                    context.3,
                    context.4,
                ))?
            } else {
                self.response.call((answer.status, head, body, looks))?
            };
            let Some(more) = more.filter(|more| *more > looks) else { return Ok(()) };
            self.response_arguments = ResponseArguments(more);
        }
    }
}

/// A value in an error message.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("`{}`", text.to_string_lossy()),
        other => format!("a {} value", other.type_name()),
    }
}

impl Users for LuaUsers {
    type Outcome = LuaResults;

    fn arrive(&mut self, slot: UserSlot, _now: Nanos, _late: Nanos) {
        self.is_delayed[slot.0 as usize] = self.features.has_delay;
    }

    fn next_action(&mut self, slot: UserSlot, now: Nanos) -> UserAction<'_> {
        // A thread that has stopped sends no more while the engine ends.
        if self.is_over() {
            return UserAction::Wait;
        }
        let is_delayed = &mut self.is_delayed[slot.0 as usize];
        if std::mem::take(is_delayed) {
            match self.delay() {
                Ok(Nanos::ZERO) => {}
                Ok(span) => return UserAction::Sleep { until: now + span },
                Err(fault) => self.faults.count(fault),
            }
        }
        if self.features.is_dynamic
            && let Err(fault) = self.call_request(slot)
        {
            self.faults.count(fault);
            return UserAction::Sleep { until: now + FAILURE_PAUSE };
        }
        UserAction::Send(UserRequest {
            bytes: &self.bytes,
            n_requests: self.features.depth,
            server: self.thread.server,
            framing: self.framing,
            detail: if self.response_arguments.needs_message() { AnswerDetail::Message } else { AnswerDetail::Status },
            timeout: self.timeout,
            may_repeat: true,
        })
    }

    fn answered(&mut self, slot: UserSlot, answer: &UserAnswer<'_>) {
        if answer.position == BatchPosition::Last {
            self.is_delayed[slot.0 as usize] = self.features.has_delay;
            if self.features.depth > 1 {
                self.batches.record(answer.ended_at.since(answer.sent_at).0);
            }
        }
        if self.features.reads_answers {
            let vital = Arc::clone(&self.thread.state.heartbeat);
            if let Err(error) = vital.within(Callback::Response, || self.call_response(slot, answer)) {
                let fault = self.thread.state.fault(Callback::Response, &error);
                self.faults.count(fault);
            }
        }
    }

    fn failed(&mut self, _slot: UserSlot, _failed: &UserFailure<'_>) {
        // Scripts of wrk are not informed of failures, but they are counted.
    }

    fn is_over(&self) -> bool {
        self.thread.facts.stop.load(Ordering::Relaxed)
    }

    fn on_phase(&mut self, window: MeasurePhase, _now: Nanos) {
        if window == MeasurePhase::Measured {
            self.batches.clear();
        }
    }

    fn finish(self, _now: Nanos) -> LuaResults {
        LuaResults { state: self.thread.state, faults: self.faults, batches: self.batches }
    }
}

/// The delay that a script returned, or the error in its return value.
fn delay_of(value: &Value) -> Result<Nanos, String> {
    let number = match value {
        Value::Integer(whole) => f64::from(i32::try_from(*whole).unwrap_or(i32::MAX)),
        Value::Number(number) => *number,
        Value::String(text) => text.to_str().ok().and_then(|text| text.trim().parse().ok()).unwrap_or(f64::NAN),
        _ => f64::NAN,
    };
    if number.is_nan() || number < 0.0 {
        return Err(format!("{}, not a number of milliseconds", shown(value)));
    }
    if number > DELAY_MS_MAX {
        return Err(format!("{}, more milliseconds than a day has", shown(value)));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and a day")]
    let millis = number as u64;
    Ok(Nanos::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_a_time_that_a_trial_may_last() {
        for (value, delay) in [
            (Value::Integer(5), Ok(Nanos::from_millis(5))),
            (Value::Number(86_400_000.0), Ok(Nanos::from_millis(86_400_000))),
            (Value::Number(1e300), Err("more milliseconds than a day has")),
            (Value::Number(-1.0), Err("not a number of milliseconds")),
            (Value::Nil, Err("not a number of milliseconds")),
        ] {
            match (delay_of(&value), delay) {
                (Ok(given), Ok(wanted)) => assert_eq!(given, wanted),
                (Err(told), Err(words)) => assert!(told.ends_with(words), "{told}"),
                (given, _) => panic!("{value:?}: {given:?}"),
            }
        }
    }
}
