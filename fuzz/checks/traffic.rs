//! What must hold for every capture, whatever its frames contain.
//!
//! Shared by the fuzz target and by the test of `replay` that runs the corpus.

use fathom_capture::{ByteClass, CaptureFileError, TrafficLimits, TrafficReader, read_frames};
use fathom_replay::{HttpObserver, RecordedExchange, RequestFate};

/// So little that captures of a few packets reach the limits.
const LIMITS: TrafficLimits =
    TrafficLimits { n_connections: 3, n_held_of_connection: 64, n_pieces_of_connection: 8, n_held: 128 };

/// Every frame, connection, byte, request and answer has one class, with little memory and with much.
pub(crate) fn traffic(bytes: &[u8]) {
    for limits in [LIMITS, TrafficLimits::USUAL] {
        check(bytes, limits);
    }
}

fn check(bytes: &[u8], limits: TrafficLimits) {
    let (mut n_frames, mut n_whole, mut n_answered) = (0, 0, 0);
    let observer = HttpObserver::new(|exchange: RecordedExchange| {
        n_whole += 1;
        n_answered += u64::from(exchange.answer.is_some());
        assert!((1..=exchange.request.len()).contains(&exchange.head_length));
        assert!(exchange.first_byte <= exchange.last_byte);
    });
    let mut reader = TrafficReader::new(observer, limits);
    let end = read_frames(bytes, |frame| {
        n_frames += 1;
        assert_eq!(frame.number, n_frames);
        reader.take(&frame);
        Ok::<_, CaptureFileError>(())
    });
    assert!(end.is_err() || end == Ok(n_frames));
    let (observer, traffic) = reader.finish();
    let counts = observer.into_counts();
    assert_eq!(traffic.packets.values().sum::<u64>(), n_frames);
    assert_eq!(traffic.begins.values().sum::<u64>(), traffic.ends.values().sum::<u64>());
    let bytes = |class| traffic.bytes.get(&class).copied().unwrap_or_default();
    assert_eq!(counts.request_bytes.values().sum::<u64>() + counts.other_client_bytes, bytes(ByteClass::Client));
    assert_eq!(counts.answer_bytes + counts.other_server_bytes, bytes(ByteClass::Server));
    assert_eq!(counts.requests.get(&RequestFate::Whole).copied().unwrap_or_default(), n_whole);
    assert_eq!(counts.answers.values().sum::<u64>(), n_whole);
    assert_eq!(counts.statuses.values().sum::<u64>(), n_answered);
}
