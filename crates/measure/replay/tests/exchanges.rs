//! Generated conversations of HTTP/1: whatever the capture has whole is found byte for byte, and every loss is counted.

use fathom_capture::{
    ByteClass, CapturedFrame, ConversationSide, LinkType, TrafficCounts, TrafficLimits, TrafficReader,
};
use fathom_model::units::Nanos;
use fathom_replay::{AnswerFate, ConversationFate, ExchangeCounts, HttpObserver, RecordedExchange, RequestFate};
use fathom_testkit::traffic::{CutPacket, Losses, SentConnection, capture, fates};
use proptest::prelude::*;

struct Read {
    exchanges: Vec<RecordedExchange>,
    exchange_counts: ExchangeCounts,
    traffic: TrafficCounts,
}

fn read(packets: &[CutPacket]) -> Read {
    let mut exchanges = Vec::new();
    let mut reader = TrafficReader::new(HttpObserver::new(|exchange| exchanges.push(exchange)), TrafficLimits::USUAL);
    for (number, (bytes, original_length)) in (1..).zip(packets) {
        let time = Some(Nanos(number));
        reader.take(&CapturedFrame { number, time, link: LinkType(101), bytes, original_length: *original_length });
    }
    let (observer, traffic) = reader.finish();
    let exchange_counts = observer.into_counts();
    Read { exchanges, exchange_counts, traffic }
}

/// Every packet, byte, request and answer has one class.
fn check_sums(packets: &[CutPacket], read: &Read) -> Result<(), TestCaseError> {
    let Read { exchanges, exchange_counts: counts, traffic } = read;
    let bytes = |class| traffic.bytes.get(&class).copied().unwrap_or_default();
    prop_assert_eq!(traffic.packets.values().sum::<u64>(), packets.len() as u64);
    let n_client = counts.request_bytes.values().sum::<u64>() + counts.other_client_bytes;
    prop_assert_eq!(n_client, bytes(ByteClass::Client));
    prop_assert_eq!(counts.answer_bytes + counts.other_server_bytes, bytes(ByteClass::Server));
    let n_whole = counts.requests.get(&RequestFate::Whole).copied().unwrap_or_default();
    prop_assert_eq!(n_whole, exchanges.len() as u64);
    prop_assert_eq!(counts.answers.values().sum::<u64>(), n_whole);
    prop_assert_eq!(counts.methods.values().sum::<u64>(), n_whole);
    prop_assert_eq!(counts.hosts.values().sum::<u64>(), n_whole);
    let n_answers = exchanges.iter().filter(|exchange| exchange.answer.is_some()).count();
    prop_assert_eq!(counts.statuses.values().sum::<u64>(), n_answers as u64);
    Ok(())
}

/// A message: the bytes before its content, the content, and what a capture says of the content.
#[derive(Debug, Clone)]
struct Exchange {
    request: Vec<u8>,
    answer: Vec<u8>,
    status: u16,
    n_content: u64,
}

/// A body in chunks of one size, with an extension and a trailer.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = body
        .chunks(size)
        .flat_map(|chunk| [format!("{:x};a=b\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
        .collect();
    bytes.extend(b"0\r\nDigest: x\r\n\r\n");
    bytes
}

fn with_body(head: &str, body: &[u8], chunk: Option<usize>) -> Vec<u8> {
    match chunk {
        Some(size) => [head.as_bytes(), b"Transfer-Encoding: chunked\r\n\r\n", &chunked(body, size)].concat(),
        None => [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat(),
    }
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let body = || prop::collection::vec(any::<u8>(), 0..1500);
    let chunk = || prop::option::of(1_usize..400);
    (0..6_usize, "[a-z]{0,9}", body(), chunk(), body(), chunk()).prop_map(
        |(kind, path, asked, chunk, body, answered_in)| {
            let head = |method: &str| format!("{method} /{path} HTTP/1.1\r\nHost: a.example\r\n");
            let answer = with_body("HTTP/1.1 200 OK\r\n", &body, answered_in);
            let n_content = body.len() as u64;
            let (request, answer, status, n_content) = match kind {
                0 => ((head("GET") + "\r\n").into_bytes(), answer, 200, n_content),
                1 => (with_body(&head("POST"), &asked, chunk), answer, 200, n_content),
                2 => (
                    (head("HEAD") + "\r\n").into_bytes(),
                    b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n".to_vec(),
                    200,
                    0,
                ),
                3 => ((head("DELETE") + "\r\n").into_bytes(), b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), 204, 0),
                4 => (
                    (head("GET") + "\r\n").into_bytes(),
                    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n".to_vec(),
                    304,
                    0,
                ),
                _ => {
                    let answer = [&b"HTTP/1.1 100 Continue\r\n\r\n"[..], &answer].concat();
                    (with_body(&head("PUT"), &asked, chunk), answer, 200, n_content)
                }
            };
            Exchange { request, answer, status, n_content }
        },
    )
}

/// Conversations, and how many requests are sent before their answers.
fn conversations() -> impl Strategy<Value = Vec<(SentConnection, Vec<Exchange>)>> {
    let sizes = prop::collection::vec(1_usize..1460, 1..8);
    let exchanges = prop::collection::vec(exchange(), 0..7);
    let conversation = ([any::<u32>(), any::<u32>()], exchanges, 1_usize..4, sizes, any::<bool>());
    let conversation = conversation.prop_map(|(first, mut exchanges, n_at_once, sizes, closes)| {
        if let Some(last) = exchanges.last_mut().filter(|_| closes) {
            *last = Exchange {
                request: b"GET /last HTTP/1.0\r\nHost: a.example\r\n\r\n".to_vec(),
                answer: b"HTTP/1.0 200 OK\r\n\r\nuntil the end".to_vec(),
                status: 200,
                n_content: 13,
            };
        }
        let turns = exchanges.chunks(n_at_once).flat_map(|several| {
            let requests = several.iter().flat_map(|exchange| exchange.request.clone()).collect();
            let answers = several.iter().flat_map(|exchange| exchange.answer.clone()).collect();
            [(0, requests), (1, answers)]
        });
        (SentConnection { first, turns: turns.collect(), sizes }, exchanges)
    });
    prop::collection::vec(conversation, 1..4)
}

fn split(conversations: Vec<(SentConnection, Vec<Exchange>)>) -> (Vec<SentConnection>, Vec<Vec<Exchange>>) {
    conversations.into_iter().unzip()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_capture_without_losses_gives_every_request_and_answer(
        conversations in conversations(),
        fates in fates(Losses::None),
    ) {
        let (connections, exchanges) = split(conversations);
        let packets = capture(&connections, &fates, Losses::None);
        let read = read(&packets);
        check_sums(&packets, &read)?;
        for (number, sent) in (0..).zip(&exchanges) {
            let found: Vec<_> = read.exchanges.iter().filter(|exchange| exchange.connection == number).collect();
            prop_assert_eq!(found.len(), sent.len());
            for (found, sent) in found.iter().zip(sent) {
                prop_assert_eq!(&found.request, &sent.request);
                prop_assert!(found.first_byte <= found.last_byte && found.opened <= found.first_byte);
                let answer = found.answer.as_ref().expect("each has an answer");
                prop_assert_eq!((answer.status, answer.content_bytes), (sent.status, sent.n_content));
                prop_assert_eq!(found.answer_fate, AnswerFate::Whole);
            }
        }
        prop_assert!(read.exchange_counts.requests.keys().all(|fate| *fate == RequestFate::Whole));
        let is_http = |fate: &ConversationFate| [ConversationFate::Http, ConversationFate::Empty].contains(fate);
        prop_assert!(read.exchange_counts.conversations.keys().all(is_http));
    }

    #[test]
    fn a_capture_with_losses_gives_nothing_that_was_not_sent(
        conversations in conversations(),
        fates in fates(Losses::Any),
        losses in prop_oneof![Just(Losses::BehindHandshake), Just(Losses::Any)],
    ) {
        let (connections, exchanges) = split(conversations);
        let packets = capture(&connections, &fates, losses);
        let read = read(&packets);
        check_sums(&packets, &read)?;
        let sent: Vec<_> = exchanges.iter().flatten().map(|exchange| &exchange.request).collect();
        for found in &read.exchanges {
            prop_assert!(sent.contains(&&found.request), "{}", found.request.escape_ascii());
        }
        // And nothing twice.
        prop_assert!(read.exchanges.len() <= sent.len());
    }
}

/// Reads one conversation whose ends say these texts in turn, the client first.
fn conversation(turns: &[&str]) -> Read {
    let turns = turns.iter().enumerate().map(|(idx, text)| (idx % 2, text.as_bytes().to_vec())).collect();
    let packets = SentConnection { first: [1, 2], turns, sizes: vec![1000] }.packets(0);
    let packets: Vec<_> = packets.into_iter().map(|packet| (packet.clone(), packet.len())).collect();
    let read = read(&packets);
    check_sums(&packets, &read).expect("every sum holds");
    read
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// What both ends say, what the conversation was, and what became of its requests.
type FateCase<'a> = (&'a [&'a str], ConversationFate, &'a [(RequestFate, u64)]);

#[test]
fn every_conversation_that_is_not_http_to_its_end_has_a_fate() {
    use ConversationFate::{Empty, Http, Http2, MalformedAnswer, MalformedRequest, OtherProtocol, Switched};
    use RequestFate::{Incomplete, Malformed, Tunnel, Upgrade, Whole};
    let cases: &[FateCase<'_>] = &[
        (&[], Empty, &[]),
        (&[GET, OK, GET, OK], Http, &[(Whole, 2)]),
        (&[GET, OK, "\r\n", ""], Http, &[(Whole, 1)]),
        (&["GET / HT"], Http, &[(Incomplete, 1)]),
        (&["POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort", OK], Http, &[(Incomplete, 1)]),
        (&["SSH-2.0-x\r\n", "SSH-2.0-y\r\n"], OtherProtocol, &[]),
        (&["\x16\x03\x01\x02", "\x16\x03"], OtherProtocol, &[]),
        (&["", "220 mail.example\r\n", "EHLO me\r\n"], OtherProtocol, &[]),
        (&["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\0\x04"], Http2, &[]),
        (
            &["CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "\x16", "\x16"],
            Switched,
            &[(Tunnel, 1)],
        ),
        (
            &[
                "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n",
                "HTTP/1.1 101 Switching Protocols\r\n\r\n",
                "\u{1}",
                "\u{2}",
            ],
            Switched,
            &[(Upgrade, 1)],
        ),
        (&["POST / HTTP/1.1\r\nContent-Length: 1, 2\r\n\r\nx", OK], MalformedRequest, &[(Malformed, 1)]),
        (&[GET, OK, "garbage\r\n\r\n", ""], MalformedRequest, &[(Whole, 1), (Malformed, 1)]),
        (
            &["POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!!", OK],
            MalformedRequest,
            &[(Malformed, 1)],
        ),
        (&[GET, "garbage\r\n\r\n", GET, OK], MalformedAnswer, &[(Whole, 2)]),
    ];
    for (turns, fate, requests) in cases {
        let counts = conversation(turns).exchange_counts;
        assert_eq!(counts.conversations, [(*fate, 1)].into(), "{turns:?}");
        assert_eq!(counts.requests, requests.iter().copied().collect(), "{turns:?}");
    }
}

#[test]
fn requests_behind_a_lost_packet_are_found_with_their_own_answers() {
    let answer = |status: u16| format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
    let texts = [GET.to_owned(), answer(201), GET.to_owned(), answer(202), GET.to_owned(), answer(203)];
    let turns: Vec<_> = texts.iter().enumerate().map(|(idx, text)| (idx % 2, text.as_bytes().to_vec())).collect();
    let all = SentConnection { first: [1, 2], turns, sizes: vec![20] }.packets(0);
    // Behind the handshake: each message is two packets; the first one of the second request is lost.
    let kept = all.iter().enumerate().filter(|(idx, _)| *idx != 3 + 4);
    let packets: Vec<_> = kept.map(|(_, packet)| (packet.clone(), packet.len())).collect();
    let read = read(&packets);
    check_sums(&packets, &read).expect("every sum holds");
    let status = |exchange: &RecordedExchange| exchange.answer.as_ref().map(|answer| answer.status);
    assert_eq!(read.exchanges.iter().map(status).collect::<Vec<_>>(), [Some(201), Some(203)]);
    assert_eq!(read.traffic.missing_bytes, [(ConversationSide::Client, 20)].into());
    let counts = read.exchange_counts;
    assert_eq!(counts.conversations, [(ConversationFate::Http, 1), (ConversationFate::MissingBytes, 1)].into());
}

#[test]
fn a_capture_of_one_direction_has_all_its_requests() {
    let turns: Vec<_> =
        [(0, GET), (1, OK)].iter().cycle().take(6000).map(|(end, text)| (*end, text.as_bytes().to_vec())).collect();
    let all = SentConnection { first: [1, 2], turns, sizes: vec![1000] }.packets(0);
    // The last byte of the source address.
    let of_client = all.into_iter().filter(|packet| packet[15] == 1);
    let packets: Vec<_> = of_client.map(|packet| (packet.clone(), packet.len())).collect();
    let read = read(&packets);
    check_sums(&packets, &read).expect("every sum holds");
    assert_eq!(read.exchange_counts.answers, [(AnswerFate::Absent, 3000)].into());
}

#[test]
fn the_answer_to_a_whole_request_has_a_fate() {
    use AnswerFate::{Absent, Incomplete, Malformed, Whole};
    let cases: &[(&[&str], AnswerFate)] = &[
        (&[GET, OK], Whole),
        (&[GET], Absent),
        (&[GET, "HTTP/1.1 200"], Incomplete),
        (&[GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"], Incomplete),
        (&[GET, "HTTP/1.1 200 OK\r\n\r\nhel"], Whole),
        (&[GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx"], Malformed),
    ];
    for (turns, fate) in cases {
        let exchanges = conversation(turns).exchanges;
        assert_eq!(exchanges.iter().map(|exchange| exchange.answer_fate).collect::<Vec<_>>(), [*fate], "{turns:?}");
    }
}

#[test]
fn contents_are_compared_without_the_framing_of_chunks() {
    let digest = |answer: &str| {
        let exchanges = conversation(&[GET, answer]).exchanges;
        exchanges[0].answer.as_ref().and_then(|answer| answer.content_digest).expect("the answer is whole")
    };
    let counted = digest("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(
        counted,
        digest("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\n\r\n")
    );
    assert_ne!(counted, digest("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO"));
}
