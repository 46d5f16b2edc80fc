//! The turns of the TCP connections in a capture: what a client sent, and how much came back before it went on.

use std::collections::BTreeMap;

use fathom_capture::{AfterMissing, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart};
use fathom_model::units::Nanos;

use super::message::{Answer, RecordedMessage};

/// A client that is silent for so long, and gets no answer, begins another turn with its next bytes, so that their distance is kept.
const PAUSE_MIN: Nanos = Nanos::from_millis(1);
/// A longer turn is divided, because it is held in memory.
const TURN_MAX: usize = 1 << 20;
/// Why a turn is not sent.
const MISSING: &str = "with packets lost or cut by the capture";
/// Why a connection is not sent.
const EMPTY: &str = "without a byte";

/// Finds the turns of connections that begin in the capture, and gives each to a sink, those of a connection in their order.
#[derive(Debug)]
pub(super) struct TurnObserver<S> {
    sink: S,
    left_out: TurnsLeftOut,
}

/// What cannot be sent, by the reason.
#[derive(Debug, Default)]
pub(super) struct TurnsLeftOut {
    pub(super) turns: BTreeMap<&'static str, u64>,
    pub(super) connections: BTreeMap<&'static str, u64>,
}

/// Takes the turns that were found.
pub(super) trait MessageSink {
    /// A message; those of a connection come in their order.
    fn take(&mut self, message: RecordedMessage);

    /// No message of this connection will follow.
    fn end(&mut self, connection: u64);
}

#[cfg(test)]
impl MessageSink for Vec<RecordedMessage> {
    fn take(&mut self, message: RecordedMessage) {
        self.push(message);
    }

    fn end(&mut self, _: u64) {}
}

impl<S: MessageSink> MessageSink for &mut S {
    fn take(&mut self, message: RecordedMessage) {
        (**self).take(message);
    }

    fn end(&mut self, connection: u64) {
        (**self).end(connection);
    }
}

/// A connection, with the turn that is not over.
#[derive(Debug)]
pub(super) struct TurnConversation {
    connection: u64,
    turn: Option<RecordedMessage>,
    /// When the client last sent something.
    last: Nanos,
    /// The bytes of the answer that the client had when it closed its direction.
    finished_at: Option<u64>,
    has_spoken: bool,
}

impl TurnConversation {
    /// The turn that is not over. A server that speaks first answers one without bytes.
    fn turn(&mut self, time: Nanos) -> &mut RecordedMessage {
        self.has_spoken = true;
        self.turn.get_or_insert_with(|| RecordedMessage {
            connection: self.connection,
            time,
            bytes: Vec::new(),
            answer: Answer::NONE,
            took: Nanos::ZERO,
            finishes: false,
        })
    }

    /// Ends the turn, if there is one.
    fn take_turn(&mut self) -> Option<RecordedMessage> {
        let mut turn = self.turn.take()?;
        turn.finishes = self.finished_at.is_some_and(|n| turn.answer.bytes > n);
        Some(turn)
    }

    /// Whether bytes of the client that come now belong to another turn.
    fn goes_on(&self, time: Nanos) -> bool {
        self.turn.as_ref().is_some_and(|turn| {
            turn.answer.is_some() || turn.bytes.len() >= TURN_MAX || time.since(self.last) >= PAUSE_MIN
        })
    }
}

impl<S: MessageSink> TurnObserver<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { sink, left_out: TurnsLeftOut::default() }
    }

    /// What was not given to the sink.
    pub(super) fn into_left_out(self) -> TurnsLeftOut {
        self.left_out
    }

    fn end_turn(&mut self, conversation: &mut TurnConversation) {
        if let Some(turn) = conversation.take_turn() {
            self.sink.take(turn);
        }
    }
}

impl<S: MessageSink> ConversationObserver for TurnObserver<S> {
    type Conversation = TurnConversation;

    /// What a connection that was open before means, nobody knows without its begin.
    fn begins(&self, _: &[u8], _: (std::net::SocketAddr, std::net::SocketAddr)) -> bool {
        false
    }

    fn open(&mut self, start: ConversationStart) -> TurnConversation {
        let (connection, last) = (start.connection, start.time);
        TurnConversation { connection, turn: None, last, finished_at: None, has_spoken: false }
    }

    fn on_bytes(&mut self, conversation: &mut TurnConversation, side: ConversationSide, bytes: &[u8], time: Nanos) {
        match side {
            ConversationSide::Client => {
                if conversation.goes_on(time) {
                    self.end_turn(conversation);
                }
                conversation.last = time;
                conversation.turn(time).bytes.extend_from_slice(bytes);
            }
            ConversationSide::Server => {
                let turn = conversation.turn(time);
                turn.answer.add(bytes);
                turn.took = time.since(turn.time);
            }
        }
    }

    fn on_missing(&mut self, conversation: &mut TurnConversation, side: ConversationSide, n: u64) -> AfterMissing {
        match side {
            // How many bytes are awaited is known all the same.
            ConversationSide::Server => {
                conversation.turn(conversation.last).answer.add_missing(n);
                AfterMissing::Continues
            }
            ConversationSide::Client => {
                // A turn that was answered is whole, and the missing bytes are of the next one.
                if conversation.turn.as_ref().is_some_and(|turn| turn.answer.is_some()) {
                    self.end_turn(conversation);
                }
                conversation.turn = None;
                conversation.has_spoken = true;
                *self.left_out.turns.entry(MISSING).or_default() += 1;
                AfterMissing::Lost
            }
        }
    }

    fn on_finished(&mut self, conversation: &mut TurnConversation, side: ConversationSide) {
        if side == ConversationSide::Client {
            conversation.finished_at = Some(conversation.turn.as_ref().map_or(0, |turn| turn.answer.bytes));
        }
    }

    fn on_end(&mut self, mut conversation: TurnConversation, _: ConversationEnd) {
        self.end_turn(&mut conversation);
        if !conversation.has_spoken {
            *self.left_out.connections.entry(EMPTY).or_default() += 1;
        }
        self.sink.end(conversation.connection);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use fathom_capture::ConversationBegin;

    use super::{
        ConversationSide::{Client, Server},
        *,
    };

    /// An event of a connection at a time in milliseconds.
    enum Event {
        Bytes(ConversationSide, u64, &'static str),
        Missing(ConversationSide, u64),
        Finished(ConversationSide),
    }
    use Event::{Bytes, Finished, Missing};

    /// The turns as text, the length of each answer, whether the client closes, and what is left out.
    fn turns(events: &[Event]) -> (Vec<(String, u64, bool)>, TurnsLeftOut) {
        let mut found = Vec::new();
        let mut observer = TurnObserver::new(&mut found);
        let end: SocketAddr = ([127, 0, 0, 1], 1).into();
        let begin = ConversationBegin::Handshake;
        let start = ConversationStart { connection: 3, client: end, server: end, time: Nanos::ZERO, begin };
        let mut conversation = observer.open(start);
        for event in events {
            match event {
                Bytes(side, at, text) => {
                    observer.on_bytes(&mut conversation, *side, text.as_bytes(), Nanos::from_millis(*at));
                }
                Missing(side, n) => {
                    if observer.on_missing(&mut conversation, *side, *n) == AfterMissing::Lost {
                        break;
                    }
                }
                Finished(side) => observer.on_finished(&mut conversation, *side),
            }
        }
        observer.on_end(conversation, ConversationEnd::Connection);
        let left_out = observer.into_left_out();
        let text = |turn: &RecordedMessage| String::from_utf8(turn.bytes.clone()).unwrap();
        (found.iter().map(|turn| (text(turn), turn.answer.bytes, turn.finishes)).collect(), left_out)
    }

    fn turn(text: &str, answer: u64, finishes: bool) -> (String, u64, bool) {
        (text.to_owned(), answer, finishes)
    }

    #[test]
    fn a_turn_ends_with_the_next_bytes_behind_an_answer_or_a_pause() {
        let (found, left_out) = turns(&[
            Bytes(Server, 1, "ready"),
            Bytes(Client, 2, "a"),
            Bytes(Client, 2, "b"),
            Bytes(Server, 9, "12"),
            Bytes(Server, 20, "3"),
            Bytes(Client, 30, "c"),
            Bytes(Client, 40, "d"),
        ]);
        assert_eq!(found, [turn("", 5, false), turn("ab", 3, false), turn("c", 0, false), turn("d", 0, false)]);
        assert!(left_out.turns.is_empty() && left_out.connections.is_empty());
    }

    #[test]
    fn a_client_that_closes_before_its_answer_does_so_again() {
        let (found, _) = turns(&[Bytes(Client, 1, "all"), Finished(Client), Bytes(Server, 2, "answer")]);
        assert_eq!(found, [turn("all", 6, true)]);
        let (found, _) = turns(&[Bytes(Client, 1, "all"), Bytes(Server, 2, "answer"), Finished(Client)]);
        assert_eq!(found, [turn("all", 6, false)]);
    }

    #[test]
    fn missing_bytes_of_a_server_count_and_those_of_a_client_end_its_connection() {
        let (found, left_out) = turns(&[
            Bytes(Client, 1, "a"),
            Missing(Server, 10),
            Bytes(Server, 2, "xy"),
            Bytes(Client, 3, "b"),
            Missing(Client, 5),
        ]);
        assert_eq!(found, [turn("a", 12, false)], "what was sent of the second is not whole");
        assert_eq!(left_out.turns, BTreeMap::from([(MISSING, 1)]));
        let (found, left_out) = turns(&[Bytes(Client, 1, "a"), Bytes(Server, 2, "x"), Missing(Client, 5)]);
        assert_eq!((found, left_out.turns), (vec![turn("a", 1, false)], BTreeMap::from([(MISSING, 1)])));
    }

    #[test]
    fn a_connection_without_a_byte_is_counted() {
        let (found, left_out) = turns(&[Finished(Client)]);
        assert_eq!((found.len(), left_out.connections), (0, BTreeMap::from([(EMPTY, 1)])));
    }
}
