//! What must hold for every capture of connections over TLS, with the secrets in it.
//!
//! Shared by the fuzz target and by the test of `replay` that runs the corpus.

use fathom_capture::{ByteClass, ConversationSide, KeyLog, TlsObserver, TrafficLimits, TrafficReader, read_traffic};
use fathom_replay::{HttpObserver, RecordedExchange};

/// Every connection over TLS has one fate, and every byte one place, decrypted or not.
pub(crate) fn tls(bytes: &[u8]) {
    let mut n_whole = 0;
    let http = HttpObserver::new(|_: RecordedExchange| n_whole += 1);
    let reader = TrafficReader::new(TlsObserver::new(http, KeyLog::default()), TrafficLimits::USUAL);
    let Ok((observer, traffic, _)) = read_traffic(bytes, reader) else { return };
    let (http, tls) = observer.finish();
    let http = http.into_counts();
    let n_conversations = http.conversations.values().sum::<u64>() + tls.n_without_conversation;
    assert!(n_conversations >= tls.connections.values().sum::<u64>());
    let of_tls = |side| {
        let bytes = [&tls.overhead_bytes, &tls.undecrypted_bytes];
        bytes.iter().filter_map(|bytes| bytes.get(&side)).sum::<u64>()
    };
    let bytes = |class| traffic.bytes.get(&class).copied().unwrap_or_default();
    let n_client = http.request_bytes.values().sum::<u64>() + http.other_client_bytes;
    assert_eq!(n_client + of_tls(ConversationSide::Client), bytes(ByteClass::Client));
    let n_server = http.answer_bytes + http.other_server_bytes;
    assert_eq!(n_server + of_tls(ConversationSide::Server), bytes(ByteClass::Server));
    assert_eq!(http.answers.values().sum::<u64>(), n_whole);
}
