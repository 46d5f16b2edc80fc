//! Users who do what a test says, and remember all that they were told.

use std::collections::BTreeMap;

use fathom_http::users::{Answered, Ask, Failed, FailedStage, Framing, Place, Row, Seat, Turn, Users, Wants, Window};
use fathom_model::units::Nanos;

/// What a user does next, as tests say it.
pub(crate) enum Act {
    Ask(Plea),
    /// For so long.
    Rest(Nanos),
    Wait,
    HangUp,
    Leave,
}

/// A request, as tests say it.
pub(crate) struct Plea {
    pub(crate) text: String,
    pub(crate) n_requests: u16,
    pub(crate) server: u16,
    pub(crate) framing: Framing,
    pub(crate) wants: Wants,
    pub(crate) timeout: Nanos,
}

/// Requests for one target.
pub(crate) fn get(target: &str) -> Plea {
    Plea {
        text: format!("GET {target} HTTP/1.1\r\nHost: here\r\n\r\n"),
        n_requests: 1,
        server: 0,
        framing: Framing::Body,
        wants: Wants::Message,
        timeout: Nanos::from_secs(20),
    }
}

/// What a user was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Arrived { now: Nanos, late: Nanos },
    Turn { now: Nanos },
    Answered(Heard),
    Failed { cause: String, stage: FailedStage, sent_at: Nanos, ended_at: Nanos },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    pub(crate) message: String,
    pub(crate) body_bytes: u64,
    pub(crate) times: [Nanos; 3],
    pub(crate) place: Place,
    pub(crate) nth_connection: u32,
}

/// What one user has seen since it came.
pub(crate) type Memory = Vec<Told>;

/// What all users of a worker bring home.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    /// By seat, and within it one for each user who sat there.
    pub(crate) by_seat: BTreeMap<u32, Vec<Memory>>,
    pub(crate) windows: Vec<Window>,
    pub(crate) start: Nanos,
    pub(crate) concluded_at: Nanos,
}

impl Memories {
    /// Of the only user, or of the first in the first seat.
    pub(crate) fn first(&self) -> &Memory {
        &self.by_seat[&0][0]
    }
}

pub(crate) fn answers(memory: &Memory) -> Vec<&Heard> {
    let answers = memory.iter().filter_map(|told| if let Told::Answered(heard) = told { Some(heard) } else { None });
    answers.collect()
}

pub(crate) fn failures(memory: &Memory) -> Vec<(&str, FailedStage)> {
    let failures = memory.iter().filter_map(|told| match told {
        Told::Failed { cause, stage, .. } => Some((cause.as_str(), *stage)),
        _ => None,
    });
    failures.collect()
}

/// Users who all follow one script.
pub(crate) struct Cast<F> {
    script: F,
    memories: Memories,
    /// Where the request that is sent lies.
    text: String,
    pub(crate) wakes: Vec<(Nanos, Seat)>,
    has_left: usize,
    ends_after: Option<usize>,
}

impl<F: FnMut(Seat, &Memory) -> Act> Cast<F> {
    pub(crate) fn new(row: &Row, script: F) -> Self {
        let memories = Memories { start: row.start, ..Memories::default() };
        Self { script, memories, text: String::new(), wakes: Vec::new(), has_left: 0, ends_after: None }
    }

    /// Ends the trial of a worker when so many users have gone.
    pub(crate) fn ending_after(self, n_left: usize) -> Self {
        Self { ends_after: Some(n_left), ..self }
    }

    fn memory(&mut self, seat: Seat) -> &mut Memory {
        self.memories.by_seat.get_mut(&seat.0).unwrap().last_mut().unwrap()
    }
}

impl<F: FnMut(Seat, &Memory) -> Act> Users for Cast<F> {
    type Outcome = Memories;

    fn arrive(&mut self, seat: Seat, now: Nanos, late: Nanos) {
        self.memories.by_seat.entry(seat.0).or_default().push(vec![Told::Arrived { now, late }]);
    }

    fn turn(&mut self, seat: Seat, now: Nanos) -> Turn<'_> {
        self.memory(seat).push(Told::Turn { now });
        let act = (self.script)(seat, self.memories.by_seat[&seat.0].last().unwrap());
        match act {
            Act::Ask(Plea { text, n_requests, server, framing, wants, timeout }) => {
                self.text = text;
                Turn::Ask(Ask { bytes: self.text.as_bytes(), n_requests, server, framing, wants, timeout })
            }
            Act::Rest(span) => Turn::Rest { until: now + span },
            Act::Wait => {
                self.wakes.push((now + Nanos::from_millis(15), seat));
                Turn::Wait
            }
            Act::HangUp => Turn::HangUp,
            Act::Leave => {
                self.has_left += 1;
                Turn::Leave
            }
        }
    }

    fn answered(&mut self, seat: Seat, answer: &Answered<'_>) {
        let heard = Heard {
            status: answer.status,
            message: String::from_utf8_lossy(answer.message).into_owned(),
            body_bytes: answer.body_bytes,
            times: [answer.sent_at, answer.first_byte_at, answer.ended_at],
            place: answer.place,
            nth_connection: answer.nth_connection,
        };
        self.memory(seat).push(Told::Answered(heard));
    }

    fn failed(&mut self, seat: Seat, failed: &Failed<'_>) {
        let Failed { cause, stage, sent_at, ended_at } = *failed;
        self.memory(seat).push(Told::Failed { cause: cause.to_owned(), stage, sent_at, ended_at });
    }

    fn woken(&mut self, now: Nanos) -> Option<Seat> {
        let due = self.wakes.iter().position(|(at, _)| *at <= now)?;
        Some(self.wakes.swap_remove(due).1)
    }

    fn is_over(&self) -> bool {
        self.ends_after.is_some_and(|n| self.has_left >= n)
    }

    fn window(&mut self, window: Window, _: Nanos) {
        self.memories.windows.push(window);
    }

    fn conclude(mut self, now: Nanos) -> Memories {
        self.memories.concluded_at = now;
        self.memories
    }
}
