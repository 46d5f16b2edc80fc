//! The datagrams of clients in a capture, each with the answer to it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use fathom_capture::{ConversationSide, FlowDatagram, FlowObserver, PacketClass};
use fathom_model::units::Nanos;

use super::{
    message::{Answer, RecordedMessage},
    turns::MessageSink,
};

/// What comes later is no answer: resolvers and most others have asked again by then.
const ANSWER_MAX: Nanos = Nanos::from_secs(5);
/// Datagrams of a flow that wait for an answer; of more, the first gets none, so that those of a client that is never answered take
/// little room.
const WAITING_MAX: usize = 64;

/// Numbers of a flow that are remembered when their answers are waited for no longer.
const FINISHED_MAX: usize = 64;

/// Finds the datagrams that clients sent, and gives each to a sink, those of a flow in their order.
#[derive(Debug)]
pub(super) struct DatagramObserver<S> {
    sink: S,
    open: HashMap<u64, OpenFlow>,
    /// Datagrams that cannot be sent, by the reason.
    left_out: BTreeMap<&'static str, u64>,
    /// Answers without a question, and those that came twice.
    n_unasked: u64,
}

/// The datagrams of a flow that may still be answered.
#[derive(Debug, Default)]
struct OpenFlow {
    waiting: VecDeque<RecordedMessage>,
    finished: FinishedNumbers,
}

/// A datagram that an answer may belong to.
pub(super) struct Question<'a> {
    /// Its first two bytes, or all of it.
    pub(super) number: &'a [u8],
    /// Whether a part of its answer came.
    pub(super) has_answer: bool,
    pub(super) may_be_answered: bool,
}

/// The numbers of the last datagrams of a flow whose answers are waited for no longer.
#[derive(Debug, Default)]
pub(super) struct FinishedNumbers(VecDeque<[u8; 2]>);

impl FinishedNumbers {
    pub(super) fn add(&mut self, question: &[u8]) {
        let Some(number) = question.first_chunk() else { return };
        if self.0.len() >= FINISHED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(*number);
    }

    /// Returns the place of the datagram that an answer belongs to.
    ///
    /// An answer of DNS begins with the number of its question, two bytes (RFC 1035 section 4.1.1), and so do those of many protocols. It
    /// belongs to the question with the same two bytes that has waited for longest. One with those of a question that is not waited for any
    /// longer came late or twice. Without such a number, it belongs to the question that has waited for longest, or else to the last one that
    /// has a part of its answer.
    pub(super) fn asked_by<'a>(
        &self,
        payload: &[u8],
        questions: &(impl ExactSizeIterator<Item = Question<'a>> + DoubleEndedIterator + Clone),
    ) -> Option<usize> {
        let number: Option<&[u8; 2]> = payload.first_chunk();
        let waits = |question: &Question| question.may_be_answered && !question.has_answer;
        let is_in_part = |question: &Question| question.may_be_answered && question.has_answer;
        let has_number = |question: &Question| number.is_some() && question.number.first_chunk() == number;
        let by_number = questions.clone().position(|question| waits(&question) && has_number(&question));
        let further = || questions.clone().position(|question| is_in_part(&question) && has_number(&question));
        if let Some(place) = by_number.or_else(further) {
            return Some(place);
        }
        if number.is_some_and(|number| self.0.contains(number)) {
            return None;
        }
        let first = questions.clone().position(|question| waits(&question));
        first.or_else(|| questions.clone().rposition(|question| is_in_part(&question)))
    }
}

impl<S: MessageSink> DatagramObserver<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { sink, open: HashMap::new(), left_out: BTreeMap::new(), n_unasked: 0 }
    }

    /// The datagrams that were not given to the sink, by the reason, and the number of answers without a question.
    pub(super) fn into_left_out(self) -> (BTreeMap<&'static str, u64>, u64) {
        (self.left_out, self.n_unasked)
    }

    fn leave_out(&mut self, why: &'static str) {
        *self.left_out.entry(why).or_default() += 1;
    }

    fn ask(&mut self, datagram: &FlowDatagram<'_>) {
        if datagram.n_cut > 0 {
            return self.leave_out("cut by the capture (snap length)");
        }
        let OpenFlow { waiting, finished } = self.open.entry(datagram.flow).or_default();
        while waiting.front().is_some_and(|first| {
            first.answer.is_some() || datagram.time.since(first.time) > ANSWER_MAX || waiting.len() >= WAITING_MAX
        }) {
            let first = waiting.pop_front().expect("the first was looked at");
            finished.add(&first.bytes);
            self.sink.take(first);
        }
        waiting.push_back(RecordedMessage {
            connection: datagram.flow,
            time: datagram.time,
            bytes: datagram.payload.to_vec(),
            answer: Answer::NONE,
            took: Nanos::ZERO,
            finishes: false,
        });
    }

    fn answer(&mut self, datagram: &FlowDatagram<'_>) {
        let OpenFlow { waiting, finished } = self.open.entry(datagram.flow).or_default();
        let questions = waiting.iter().map(|message| Question {
            number: &message.bytes,
            has_answer: message.answer.is_some(),
            may_be_answered: datagram.time.since(message.time) <= ANSWER_MAX,
        });
        let place = finished.asked_by(datagram.payload, &questions);
        let mut alone = Answer::NONE;
        alone.add_datagram(datagram.payload);
        let message = place.and_then(|place| waiting.get_mut(place)).filter(|message| message.answer != alone);
        let Some(message) = message else {
            self.n_unasked += 1;
            return;
        };
        message.answer.add_datagram(datagram.payload);
        message.answer.add_missing(datagram.n_cut as u64);
        message.took = datagram.time.since(message.time);
    }
}

impl<S: MessageSink> FlowObserver for DatagramObserver<S> {
    fn on_datagram(&mut self, datagram: &FlowDatagram<'_>) {
        match datagram.side {
            ConversationSide::Client => self.ask(datagram),
            ConversationSide::Server => self.answer(datagram),
        }
    }

    fn on_other(&mut self, class: PacketClass) {
        match class {
            PacketClass::Fragment => self.leave_out("in IP fragments, of both sides"),
            PacketClass::CutHeader => self.leave_out("with a header cut by the capture (snap length)"),
            PacketClass::Malformed => self.leave_out("with malformed headers"),
            PacketClass::UnknownLink => self.leave_out("in frames of an unknown link type"),
            _ => {}
        }
    }

    fn on_end(&mut self, flow: u64) {
        for message in self.open.remove(&flow).into_iter().flat_map(|open| open.waiting) {
            self.sink.take(message);
        }
        self.sink.end(flow);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ConversationSide::{Client, Server},
        *,
    };

    /// The datagrams of clients, with the bytes and the number of the answers.
    fn found(datagrams: &[(ConversationSide, u64, &str)]) -> (Vec<(String, u64, u32)>, u64) {
        let mut found = Vec::new();
        let mut observer = DatagramObserver::new(&mut found);
        for (side, at, text) in datagrams {
            let (time, payload) = (Nanos::from_millis(*at), text.as_bytes());
            observer.on_datagram(&FlowDatagram { flow: 1, side: *side, time, payload, n_cut: 0 });
        }
        observer.on_end(1);
        let (_, n_unasked) = observer.into_left_out();
        let shown = |message: &RecordedMessage| {
            let Answer { bytes, n_datagrams, .. } = message.answer;
            (String::from_utf8(message.bytes.clone()).unwrap(), bytes, n_datagrams)
        };
        (found.iter().map(shown).collect(), n_unasked)
    }

    fn message(text: &str, bytes: u64, n: u32) -> (String, u64, u32) {
        (text.to_owned(), bytes, n)
    }

    #[test]
    fn an_answer_belongs_to_the_question_with_its_number_or_to_the_first_that_waits() {
        let (messages, n_unasked) = found(&[
            (Client, 0, "01 a"),
            (Client, 1, "02 b"),
            (Server, 2, "02 answer"),
            (Server, 3, "?"),
            (Server, 3, "further"),
            (Client, 4, "03 c"),
        ]);
        assert_eq!(messages, [message("01 a", 1, 1), message("02 b", 16, 2), message("03 c", 0, 0)]);
        assert_eq!(n_unasked, 0);
    }

    #[test]
    fn what_comes_too_late_is_no_answer_to_it() {
        let (messages, n_unasked) =
            found(&[(Server, 0, "x"), (Client, 0, "a"), (Client, 6000, "b"), (Server, 6001, "y")]);
        assert_eq!((messages, n_unasked), (vec![message("a", 0, 0), message("b", 1, 1)], 1));
        assert_eq!(found(&[(Client, 0, "a"), (Server, 6000, "y")]), (vec![message("a", 0, 0)], 1));
    }

    #[test]
    fn an_answer_that_comes_twice_is_none_to_another_question() {
        let both = vec![message("01 a", 4, 1), message("02 b", 4, 1)];
        let at_once = [(Client, 0, "01 a"), (Client, 1, "02 b"), (Server, 2, "01 y"), (Server, 2, "01 y")];
        let answered = [(Server, 3, "02 z"), (Server, 3, "02 z")];
        assert_eq!(found(&[&at_once[..], &answered].concat()), (both.clone(), 2));
        let in_turn = [(Client, 0, "01 a"), (Server, 1, "01 y"), (Client, 2, "02 b"), (Server, 2, "01 y")];
        assert_eq!(found(&[&in_turn[..], &answered].concat()), (both, 2));
    }

    #[test]
    fn datagrams_that_are_never_answered_take_little_room_and_keep_their_order() {
        let texts: Vec<String> = (0..300).map(|n| n.to_string()).collect();
        let sent: Vec<_> = texts.iter().map(|text| (Client, 0, text.as_str())).collect();
        let (messages, _) = found(&sent);
        assert!(messages.iter().map(|message| &message.0).eq(&texts));
        let mut found = Vec::new();
        let mut observer = DatagramObserver::new(&mut found);
        for text in &texts {
            let payload = text.as_bytes();
            observer.on_datagram(&FlowDatagram { flow: 1, side: Client, time: Nanos::ZERO, payload, n_cut: 0 });
        }
        assert_eq!(observer.open[&1].waiting.len(), WAITING_MAX);
    }

    #[test]
    fn what_is_no_whole_datagram_is_counted() {
        let mut found = Vec::new();
        let mut observer = DatagramObserver::new(&mut found);
        let time = Nanos::ZERO;
        observer.on_datagram(&FlowDatagram { flow: 1, side: Client, time, payload: b"ab", n_cut: 3 });
        for class in [PacketClass::Fragment, PacketClass::Fragment, PacketClass::NotUdp, PacketClass::NotChosen] {
            observer.on_other(class);
        }
        observer.on_end(1);
        let (left_out, _) = observer.into_left_out();
        assert_eq!(left_out.into_values().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(found.len(), 0);
    }
}
