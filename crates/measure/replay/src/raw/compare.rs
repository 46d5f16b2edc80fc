//! Compares the answer to a message with the recorded one: by length, and byte by byte through a digest.

use std::collections::BTreeMap;

use fathom_model::{
    replay::{AnswerDifference, ComparedAnswers, DifferenceExample},
    units::{Nanos, grouped},
};

use super::{
    message::{Answer, ExpectedAnswer},
    target::Transport,
};

/// Compares the answers of one worker.
#[derive(Debug)]
pub(super) struct RawComparer {
    transport: Transport,
    result: ComparedAnswers,
    /// By what differs.
    differences: BTreeMap<&'static str, AnswerDifference>,
}

impl RawComparer {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, result: ComparedAnswers::default(), differences: BTreeMap::new() }
    }

    /// Compares the answer to a message of so many bytes, which took so long.
    pub(super) fn compare(&mut self, n_asked: usize, recorded: &ExpectedAnswer, answer: &Answer, took: Nanos) {
        match took.0.checked_sub(recorded.took.0) {
            Some(longer @ 1..) => self.result.slower.record(longer),
            _ => self.result.faster.record(recorded.took.0 - took.0),
        }
        let Some(what) = difference(recorded, answer) else {
            match recorded.digest {
                Some(_) => self.result.n_same += 1,
                None => self.result.n_without_recorded += 1,
            }
            return;
        };
        self.result.n_different += 1;
        let (a_message, messages) = match self.transport {
            Transport::Tcp => ("a turn", "turns"),
            Transport::Udp => ("a datagram", "datagrams"),
        };
        let new = || AnswerDifference {
            what: what.to_owned(),
            requests: messages.to_owned(),
            n: 0,
            example: DifferenceExample {
                request: format!("{a_message} of {} B", grouped(n_asked as u64)),
                recorded: shown(recorded.bytes, recorded.n_datagrams),
                replayed: shown(answer.bytes, answer.n_datagrams),
            },
        };
        self.differences.entry(what).or_insert_with(new).n += 1;
    }

    pub(super) fn finish(self) -> ComparedAnswers {
        ComparedAnswers { differences: self.differences.into_values().collect(), ..self.result }
    }
}

/// How an answer differs; `None` if it is not known to.
fn difference(recorded: &ExpectedAnswer, answer: &Answer) -> Option<&'static str> {
    match answer.n_datagrams.cmp(&recorded.n_datagrams).then(answer.bytes.cmp(&recorded.bytes)) {
        std::cmp::Ordering::Less => Some("shorter answer"),
        std::cmp::Ordering::Greater => Some("longer answer"),
        std::cmp::Ordering::Equal => {
            let is_other = recorded.digest.is_some() && recorded.digest != answer.digest();
            is_other.then_some("other content of the same length")
        }
    }
}

/// The length of an answer.
fn shown(bytes: u64, n_datagrams: u32) -> String {
    match n_datagrams {
        0 | 1 => format!("{} B", grouped(bytes)),
        n => format!("{} B in {n} datagrams", grouped(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_by_their_length_or_their_bytes() {
        let answer = |text: &str| {
            let mut answer = Answer::NONE;
            answer.add(text.as_bytes());
            answer
        };
        let expected = |answer: Answer| ExpectedAnswer {
            bytes: answer.bytes,
            n_datagrams: answer.n_datagrams,
            digest: answer.digest(),
            took: Nanos(5),
        };
        let mut comparer = RawComparer::new(Transport::Tcp);
        for text in ["+OK", "+NO", "+OKAY", "+"] {
            comparer.compare(9, &expected(answer("+OK")), &answer(text), Nanos(7));
        }
        let mut lacking = answer("+O");
        lacking.add_missing(1);
        comparer.compare(9, &expected(lacking), &answer("+OK"), Nanos(4));
        let result = comparer.finish();
        assert_eq!((result.n_same, result.n_different, result.n_without_recorded), (1, 3, 1));
        let whats: Vec<_> = result.differences.iter().map(|one| (one.what.as_str(), one.n)).collect();
        assert_eq!(whats, [("longer answer", 1), ("other content of the same length", 1), ("shorter answer", 1)]);
        assert_eq!(result.differences[0].example.request, "a turn of 9 B");
        assert_eq!((result.slower.count(), result.faster.count()), (4, 1));
    }
}
