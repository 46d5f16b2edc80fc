//! What must hold for every conversation of HTTP/2, whatever its frames and fields contain.
//!
//! Shared by the fuzz target and by the test of `replay` that runs the corpus. The bytes are pieces: two bytes with the sender in the highest
//! bit and the length in the others, then what was sent.

use std::net::SocketAddr;

use fathom_capture::{
    ConversationBegin, ConversationEnd, ConversationObserver as _, ConversationSide, ConversationStart,
};
use fathom_http::h1::RequestHead;
use fathom_model::units::Nanos;
use fathom_replay::{HttpObserver, RecordedExchange};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Every request is one that HTTP/1.1 can say and that ends where it should, and every byte has one place.
pub(crate) fn http2(mut bytes: &[u8]) {
    let mut n_whole = 0;
    let mut http = HttpObserver::new(|exchange: RecordedExchange| {
        n_whole += 1;
        let head = RequestHead::parse(&exchange.request).expect("it is sound").expect("it is whole");
        assert_eq!(head.length, exchange.head_length);
        assert!(exchange.first_byte <= exchange.last_byte && exchange.lane.is_some());
    });
    let at = SocketAddr::from(([198, 18, 0, 1], 80));
    let (time, begin) = (Nanos(1), ConversationBegin::Handshake);
    let mut conversation = http.open(ConversationStart { connection: 0, client: at, server: at, time, begin });
    http.on_bytes(&mut conversation, ConversationSide::Client, PREFACE, time);
    let mut sent = [PREFACE.len() as u64, 0];
    while let [first, second, rest @ ..] = bytes {
        let number = u16::from_be_bytes([*first, *second]);
        let (piece, rest) = rest.split_at(usize::from(number & 0x7fff).min(rest.len()));
        let (side, n) = match number >> 15 {
            0 => (ConversationSide::Client, &mut sent[0]),
            _ => (ConversationSide::Server, &mut sent[1]),
        };
        http.on_bytes(&mut conversation, side, piece, time);
        *n += piece.len() as u64;
        bytes = rest;
    }
    http.on_end(conversation, ConversationEnd::Connection);
    let counts = http.into_counts();
    assert_eq!(counts.request_bytes.values().sum::<u64>() + counts.other_client_bytes, sent[0]);
    assert_eq!(counts.answer_bytes + counts.other_server_bytes, sent[1]);
    assert_eq!((counts.answers.values().sum::<u64>(), counts.hosts.values().sum::<u64>()), (n_whole, n_whole));
}
