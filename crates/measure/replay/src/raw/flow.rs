//! One connection or flow of ours: the message that it sends next, and those whose answers it waits for.

use std::collections::VecDeque;

use fathom_engine::load::SendTimes;
use fathom_model::units::Nanos;
use fathom_sys::socket::Socket;

use super::{
    datagrams::{FinishedNumbers, Question},
    message::{Answer, ExpectedAnswer},
};
use crate::schedule::RequestNumber;

/// A message that was sent.
#[derive(Debug, Clone)]
pub(super) struct SentMessage {
    pub(super) times: SendTimes,
    pub(super) n_bytes: usize,
    /// Its first two bytes, by which answers in datagrams find it.
    pub(super) number: Vec<u8>,
    pub(super) expected: ExpectedAnswer,
    pub(super) received: Answer,
    /// When the last bytes came.
    pub(super) answered_at: Nanos,
    /// When its answer is waited for no longer.
    pub(super) deadline: Nanos,
}

impl SentMessage {
    /// Whether as much came as in the recording.
    pub(super) const fn is_answered(&self) -> bool {
        match self.expected.n_datagrams {
            0 => self.received.bytes >= self.expected.bytes,
            n => self.received.n_datagrams >= n,
        }
    }

    /// Whether the recording has an answer to it.
    pub(super) const fn awaits_answer(&self) -> bool {
        self.expected.bytes > 0 || self.expected.n_datagrams > 0
    }
}

/// A connection or a flow in a slot.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Absent in a free slot.
    pub(super) socket: Option<Socket>,
    /// Since when it connects.
    pub(super) connecting_since: Option<Nanos>,
    /// The message that is sent next.
    pub(super) next: Option<RequestNumber>,
    /// The messages whose answers are not whole, in their order.
    pub(super) in_flight: VecDeque<SentMessage>,
    /// The last turn with a whole answer: what comes before the next turn belongs to it too.
    pub(super) answered: Option<SentMessage>,
    /// The rest of a turn that the kernel has not taken.
    pub(super) unsent: Vec<u8>,
    /// Whether our direction is to be closed behind that rest.
    pub(super) finishes: bool,
    /// Whether the socket is watched for room to send.
    pub(super) awaits_room: bool,
    /// When it is woken to send its next message.
    pub(super) wakes_at: Option<Nanos>,
    /// Since when our direction is closed behind the last turn.
    pub(super) closing_since: Option<Nanos>,
    /// Whether the last turn has no answer in the recording, so that only the server's acknowledgment tells of its arrival.
    pub(super) ends_answerless: bool,
    /// The numbers of datagrams whose answers are waited for no longer.
    pub(super) finished: FinishedNumbers,
}

impl Flow {
    /// Bytes of a stream arrive: they belong to the turn that waits, or to the one before. Returns false if there is none.
    pub(super) fn take_bytes(&mut self, bytes: &[u8], at: Nanos) -> bool {
        let Some(turn) = self.in_flight.front_mut().or(self.answered.as_mut()) else { return false };
        turn.received.add(bytes);
        turn.answered_at = at;
        true
    }

    /// A datagram arrives. Returns false if no answer is waited for.
    pub(super) fn take_datagram(&mut self, payload: &[u8], at: Nanos) -> bool {
        let questions = self.in_flight.iter().map(|sent| Question {
            number: &sent.number,
            has_answer: sent.received.is_some(),
            may_be_answered: true,
        });
        let Some(place) = self.finished.asked_by(payload, &questions) else { return false };
        let Some(sent) = self.in_flight.get_mut(place) else { return false };
        sent.received.add_datagram(payload);
        sent.answered_at = at;
        true
    }

    /// Takes out a message whose answer is whole.
    pub(super) fn next_answered(&mut self) -> Option<SentMessage> {
        if !self.unsent.is_empty() {
            return None;
        }
        let place = self.in_flight.iter().position(SentMessage::is_answered)?;
        self.take_out(place)
    }

    /// Takes out a message whose answer has been waited for long enough.
    pub(super) fn next_overdue(&mut self, now: Nanos) -> Option<SentMessage> {
        let place = self.in_flight.iter().position(|sent| sent.deadline <= now)?;
        self.take_out(place)
    }

    fn take_out(&mut self, place: usize) -> Option<SentMessage> {
        let sent = self.in_flight.remove(place)?;
        self.finished.add(&sent.number);
        Some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: &str, bytes: u64, n_datagrams: u32) -> SentMessage {
        SentMessage {
            times: SendTimes::default(),
            n_bytes: 4,
            number: number.as_bytes().to_vec(),
            expected: ExpectedAnswer { bytes, n_datagrams, digest: None, took: Nanos::ZERO },
            received: Answer::NONE,
            answered_at: Nanos::ZERO,
            deadline: Nanos(100),
        }
    }

    #[test]
    fn a_turn_is_answered_once_as_many_bytes_came_and_what_follows_belongs_to_it() {
        let mut flow = Flow { in_flight: [sent("", 5, 0)].into(), ..Flow::default() };
        assert!(flow.take_bytes(b"abc", Nanos(1)) && flow.next_answered().is_none());
        assert!(flow.take_bytes(b"de", Nanos(2)));
        flow.answered = flow.next_answered();
        assert!(flow.take_bytes(b"more", Nanos(3)));
        assert_eq!(flow.answered.map(|turn| turn.received.bytes), Some(9));
        assert!(!Flow::default().take_bytes(b"?", Nanos(4)));
    }

    #[test]
    fn a_turn_whose_rest_is_not_sent_is_not_answered() {
        let mut flow = Flow { in_flight: [sent("", 0, 0)].into(), unsent: vec![1], ..Flow::default() };
        assert!(flow.next_answered().is_none());
        flow.unsent.clear();
        assert!(flow.next_answered().is_some());
    }

    #[test]
    fn datagrams_find_their_question_and_further_ones_the_last_with_a_part() {
        let mut flow = Flow { in_flight: [sent("01", 9, 1), sent("02", 9, 2)].into(), ..Flow::default() };
        assert!(flow.take_datagram(b"02 first", Nanos(1)) && flow.next_answered().is_none());
        assert!(flow.take_datagram(b"01", Nanos(1)));
        assert_eq!(flow.next_answered().map(|sent| sent.number), Some(b"01".to_vec()));
        assert!(!flow.take_datagram(b"01", Nanos(2)), "an answer that comes twice is none to another question");
        assert!(flow.take_datagram(b"?", Nanos(2)), "the rest of the second answer");
        assert_eq!(flow.next_answered().map(|sent| sent.received.n_datagrams), Some(2));
        assert!(!flow.take_datagram(b"?", Nanos(2)));
    }

    #[test]
    fn an_answer_is_waited_for_until_its_deadline() {
        let mut flow = Flow { in_flight: [sent("", 5, 0)].into(), ..Flow::default() };
        assert!(flow.next_overdue(Nanos(99)).is_none() && flow.next_overdue(Nanos(100)).is_some());
    }
}
