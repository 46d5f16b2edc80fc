//! Connections of HTTP/2, captured: each stream is a request with its answer, in the form of HTTP/1.1.
#![expect(clippy::unwrap_used, reason = "what a test makes itself must work")]

use fathom_capture::{ByteClass, CapturedFrame, LinkType, TrafficCounts, TrafficLimits, TrafficReader};
use fathom_model::units::Nanos;
use fathom_replay::{AnswerFate, ConversationFate, ExchangeCounts, HttpObserver, RecordedExchange, RequestFate};
use fathom_testkit::traffic::SentConnection;
use loona_hpack::Encoder;
use twox_hash::XxHash64;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Both ends of a connection, and what they send.
struct Ends {
    encoders: [Encoder<'static>; 2],
    turns: Vec<(usize, Vec<u8>)>,
}

impl Ends {
    /// The server's settings may come before the preface.
    fn new(preface_of: usize) -> Self {
        let mut ends = Self { encoders: [Encoder::new(), Encoder::new()], turns: Vec::new() };
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let mut turns = vec![(0, [PREFACE, &settings].concat()), (1, settings.to_vec())];
        turns.rotate_left(preface_of);
        ends.turns = turns;
        ends
    }

    fn frame(&mut self, end: usize, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let header = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.turns.push((end, [&header, payload].concat()));
    }

    fn block(&mut self, end: usize, fields: &[(&str, &str)]) -> Vec<u8> {
        self.encoders[end].encode(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    fn headers(&mut self, end: usize, flags: u8, stream: u32, fields: &[(&str, &str)]) {
        let block = self.block(end, fields);
        self.frame(end, 1, flags | END_HEADERS, stream, &block);
    }

    fn get(&mut self, stream: u32, path: &str) {
        self.headers(
            0,
            END_STREAM,
            stream,
            &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", path)],
        );
    }

    fn answer(&mut self, stream: u32, content: &str) {
        self.headers(1, 0, stream, &[(":status", "200"), ("server", "s")]);
        self.frame(1, 0, END_STREAM, stream, content.as_bytes());
    }

    fn read(self) -> Found {
        let mut found = None;
        for sizes in [vec![1], vec![9, 3], vec![1400]] {
            let sent = SentConnection { first: [1, 2], turns: self.turns.clone(), sizes };
            let now = read(&sent.packets(0));
            let of = |found: &Found| {
                let exchanges = found.exchanges.iter();
                exchanges
                    .map(|exchange| (exchange.request.clone(), exchange.lane, exchange.answer_fate))
                    .collect::<Vec<_>>()
            };
            let before = found.replace(now);
            let now = found.as_ref().unwrap();
            assert!(before.is_none_or(|before| of(&before) == of(now) && before.counts == now.counts));
        }
        found.unwrap()
    }
}

struct Found {
    exchanges: Vec<RecordedExchange>,
    counts: ExchangeCounts,
}

impl Found {
    fn requests(&self) -> Vec<(RequestFate, u64)> {
        self.counts.requests.iter().map(|(fate, n)| (*fate, *n)).collect()
    }

    fn text(&self, idx: usize) -> &str {
        std::str::from_utf8(&self.exchanges[idx].request).unwrap()
    }
}

fn read(packets: &[Vec<u8>]) -> Found {
    let mut exchanges = Vec::new();
    let mut reader = TrafficReader::new(HttpObserver::new(|exchange| exchanges.push(exchange)), TrafficLimits::USUAL);
    for (number, bytes) in (1..).zip(packets) {
        let (time, original_length) = (Some(Nanos(number)), bytes.len());
        reader.take(&CapturedFrame { number, time, link: LinkType(101), bytes, original_length });
    }
    let (observer, traffic) = reader.finish();
    let counts = observer.into_counts();
    check_sums(&counts, &traffic);
    Found { exchanges, counts }
}

fn check_sums(counts: &ExchangeCounts, traffic: &TrafficCounts) {
    let bytes = |class| traffic.bytes.get(&class).copied().unwrap_or_default();
    assert_eq!(counts.request_bytes.values().sum::<u64>() + counts.other_client_bytes, bytes(ByteClass::Client));
    assert_eq!(counts.answer_bytes + counts.other_server_bytes, bytes(ByteClass::Server));
}

#[test]
fn streams_become_requests_and_answers_whatever_their_frames_are_made_of() {
    for preface_of in [0, 1] {
        let mut ends = Ends::new(preface_of);
        let fields =
            [(":method", "POST"), (":scheme", "http"), (":authority", "a:81"), (":path", "/x?y=1"), ("cookie", "a=1")];
        let block = ends.block(0, &[&fields[..], &[("cookie", "b=2"), ("x-long", &"z".repeat(300))]].concat());
        // Padded and with a priority, and in three frames.
        let begin = [&[3][..], &[0, 0, 0, 0, 9], &block[..20], &[0; 3]].concat();
        ends.frame(0, 1, 0x8 | 0x20, 1, &begin);
        ends.frame(0, 9, 0, 1, &block[20..25]);
        ends.frame(0, 9, END_HEADERS, 1, &block[25..]);
        ends.frame(0, 0, 0x8, 1, b"\x04hello\0\0\0\0");
        ends.frame(0, 8, 0, 0, &[0, 0, 1, 0]);
        ends.frame(0, 0, END_STREAM, 1, b" world");
        ends.headers(1, 0, 1, &[(":status", "103"), ("link", "</a>")]);
        ends.headers(1, 0, 1, &[(":status", "201"), ("content-length", "4")]);
        ends.frame(1, 0, 0, 1, b"do");
        ends.frame(1, 0, 0x8, 1, b"\x01ne\0");
        ends.headers(1, END_STREAM, 1, &[("digest", "z")]);
        let found = ends.read();
        let head = format!("POST /x?y=1 HTTP/1.1\r\nhost: a:81\r\ncookie: a=1; b=2\r\nx-long: {}\r\n", "z".repeat(300));
        assert_eq!(found.text(0), format!("{head}content-length: 11\r\n\r\nhello world"));
        let exchange = &found.exchanges[0];
        let answer = exchange.answer.as_ref().unwrap();
        assert_eq!((exchange.lane, exchange.answer_fate, answer.status), (Some(0), AnswerFate::Whole, 201));
        assert_eq!(answer.head, b"HTTP/1.1 201 \r\ncontent-length: 4\r\n\r\n");
        assert_eq!((answer.content_bytes, answer.content_digest), (4, Some(XxHash64::oneshot(0, b"done"))));
        assert_eq!(found.counts.conversations, [(ConversationFate::Http2, 1)].into());
        assert_eq!(found.counts.hosts, [("a:81".to_owned(), 1)].into());
    }
}

#[test]
fn streams_that_overlap_are_on_lanes_of_their_own_and_the_others_follow_each_other() {
    let mut ends = Ends::new(0);
    ends.get(1, "/1");
    ends.get(3, "/3");
    ends.answer(3, "three");
    ends.get(5, "/5");
    ends.answer(1, "one");
    ends.answer(5, "five");
    ends.get(7, "/7");
    ends.answer(7, "seven");
    let found = ends.read();
    let lanes: Vec<_> = found
        .exchanges
        .iter()
        .enumerate()
        .map(|(idx, exchange)| {
            (
                found.text(idx).split(' ').nth(1).unwrap(),
                exchange.lane.unwrap(),
                exchange.answer.as_ref().unwrap().content_digest,
            )
        })
        .collect();
    let of = |text: &str| Some(XxHash64::oneshot(0, text.as_bytes()));
    assert_eq!(lanes, [("/3", 1, of("three")), ("/1", 0, of("one")), ("/5", 1, of("five")), ("/7", 0, of("seven"))]);
}

#[test]
fn every_stream_that_is_not_whole_has_a_fate() {
    use RequestFate::{Incomplete, Malformed, Reset, Tunnel, Upgrade, Whole};
    let mut ends = Ends::new(0);
    let post = [(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
    ends.headers(0, 0, 1, &post);
    ends.frame(0, 3, 0, 1, &[0, 0, 0, 8]);
    ends.get(3, "/reset-by-the-server");
    ends.headers(1, 0, 3, &[(":status", "200")]);
    ends.frame(1, 3, 0, 3, &[0, 0, 0, 2]);
    ends.headers(0, 0, 5, &[&post[..], &[("content-length", "9")]].concat());
    ends.frame(0, 0, END_STREAM, 5, b"short");
    ends.headers(1, END_STREAM, 5, &[(":status", "400")]);
    ends.headers(0, END_STREAM, 7, &[&post[..], &[("x", "a\r\nb: c")]].concat());
    ends.headers(1, END_STREAM, 7, &[(":status", "400")]);
    ends.headers(0, 0, 9, &[(":method", "CONNECT"), (":authority", "b:443")]);
    ends.headers(
        0,
        0,
        11,
        &[(":method", "CONNECT"), (":protocol", "websocket"), (":authority", "b"), (":path", "/ws")],
    );
    ends.headers(0, END_STREAM, 13, &post);
    ends.get(15, "/no-answer");
    ends.headers(0, 0, 17, &post);
    // Who pushes sends requests that no client has sent.
    let promise = ends.block(1, &[(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/pushed")]);
    ends.frame(1, 5, END_HEADERS, 13, &[&[0, 0, 0, 2][..], &promise].concat());
    ends.headers(1, 0, 2, &[(":status", "200")]);
    ends.frame(1, 0, END_STREAM, 2, b"pushed");
    ends.answer(13, "");
    ends.frame(1, 7, 0, 0, &[0, 0, 0, 13, 0, 0, 0, 0]);
    let found = ends.read();
    assert_eq!(found.requests(), [(Whole, 3), (Incomplete, 1), (Malformed, 2), (Tunnel, 1), (Upgrade, 1), (Reset, 1)]);
    let answers = [(AnswerFate::Whole, 1), (AnswerFate::Absent, 1), (AnswerFate::Reset, 1)];
    assert_eq!(found.counts.answers, answers.into());
    assert_eq!(found.counts.n_pushed_answers, 1);
}

#[test]
fn what_one_side_says_wrongly_leaves_what_was_whole_before() {
    use ConversationFate::{MalformedAnswer, MalformedRequest};
    for (end, fate) in [(0, MalformedRequest), (1, MalformedAnswer)] {
        let mut ends = Ends::new(0);
        ends.get(1, "/1");
        ends.answer(1, "one");
        // An index that no table has.
        ends.frame(end, 1, END_HEADERS | END_STREAM, 3, &[0xff, 0xff, 0x7f]);
        ends.get(5, "/5");
        let found = ends.read();
        assert_eq!(found.counts.conversations, [(fate, 1)].into());
        let n = found.counts.requests.values().sum::<u64>();
        assert_eq!((found.counts.requests[&RequestFate::Whole], n), if end == 0 { (1, 2) } else { (2, 2) });
    }
}

#[test]
fn a_lost_part_of_content_is_of_one_stream_and_any_other_loss_ends_the_conversation() {
    let lose = |number: usize| {
        let mut ends = Ends::new(0);
        ends.get(1, "/1");
        ends.headers(1, 0, 1, &[(":status", "200")]);
        ends.frame(1, 0, END_STREAM, 1, &[7; 3000]);
        ends.get(3, "/3");
        ends.answer(3, "three");
        let sent = SentConnection { first: [1, 2], turns: ends.turns, sizes: vec![1000] };
        let mut packets = sent.packets(0);
        packets.remove(number);
        let found = read(&packets);
        let fates: Vec<_> = found.exchanges.iter().map(|exchange| exchange.answer_fate).collect();
        (fates, found.counts.conversations)
    };
    // Behind the handshake, both settings, the request and the head: the second of four packets of content.
    let within = lose(3 + 4 + 1);
    assert_eq!(within, (vec![AnswerFate::MissingBytes, AnswerFate::Whole], [(ConversationFate::Http2, 1)].into()));
    let head = lose(3 + 3);
    assert_eq!(head.1, [(ConversationFate::MissingBytes, 1)].into());
    assert_eq!(head.0[0], AnswerFate::MissingBytes);
}
