//! What must hold for every access log, whatever its lines contain.
//!
//! Shared by the fuzz target and by the test of `replay` that runs the corpus.

use std::collections::BTreeSet;

use fathom_model::units::Nanos;
use fathom_replay::{AnswerFate, BodiesNotLogged, LineFate, LogError, LogOptions, RecordedExchange, read_log};

/// A format that most texts are not in, and one that many are.
const FORMATS: [&str; 2] = [r#"$remote_addr - $remote_user [$time_local] "$request" $status"#, "$msec $request"];

/// Every line has one fate, and whole requests come in the order of their times.
pub(crate) fn access_log(bytes: &[u8]) {
    let given = FORMATS.map(|text| Some(text.parse().expect("a format of its own")));
    for format in [None].into_iter().chain(given) {
        for bodies in [BodiesNotLogged::LeaveOut, BodiesNotLogged::Empty] {
            check(bytes, &LogOptions { format: format.clone(), bodies, now: Nanos(u64::MAX / 2) });
        }
    }
}

fn check(bytes: &[u8], options: &LogOptions) {
    let (mut n_whole, mut n_logged, mut last) = (0, 0, Nanos::ZERO);
    let mut connections = BTreeSet::new();
    let take = |exchange: RecordedExchange| {
        n_whole += 1;
        n_logged += u64::from(exchange.logged.is_some());
        connections.insert(exchange.connection);
        assert_eq!(exchange.logged.is_some(), exchange.answer_fate == AnswerFate::Logged);
        assert!(exchange.request[..exchange.head_length].ends_with(b"\r\n\r\n"));
        assert!(exchange.opened <= exchange.first_byte && last <= exchange.first_byte);
        last = exchange.first_byte;
        Ok::<_, LogError>(())
    };
    let Ok(contents) = read_log(bytes, options, take) else { return };
    let counts = contents.counts;
    let is_compressed = bytes.starts_with(&[0x1f, 0x8b]);
    let n_lines = bytes.split_inclusive(|byte| *byte == b'\n').count() as u64;
    assert!(is_compressed || counts.n_lines() == n_lines);
    assert_eq!(counts.lines.get(&LineFate::Whole).copied().unwrap_or_default(), n_whole);
    assert_eq!(counts.answers.values().sum::<u64>(), n_whole);
    assert_eq!(counts.statuses.values().sum::<u64>(), n_logged);
    assert_eq!(counts.methods.values().sum::<u64>(), n_whole);
    assert_eq!(counts.n_connections, connections.len() as u64);
}
