//! What must hold for every control message of iperf3, whoever sent it.
//!
//! Shared by the fuzz target and by the test of `transport` that runs the corpus.

use fathom_interop::iperf3::{Parameters, Results, TestState, read_message};

/// Reads a message as everything that it may be: what is taken is within its ranges, and is the same when it is sent on.
pub(crate) fn message(bytes: &[u8]) {
    for byte in bytes {
        assert!(TestState::read(*byte).is_none_or(|state| state.byte() == *byte));
    }
    let Ok(value) = read_message(bytes) else { return };
    if let Ok(parameters) = Parameters::read(&value) {
        assert!((1..=256).contains(&parameters.n_streams()) && parameters.time_secs <= 86_400);
        assert!((1..=1 << 20).contains(&parameters.block.0) && parameters.window.0 <= 512 << 20);
        assert!(parameters.budget().is_none_or(|blocks| blocks > 0));
        let again = Parameters::read(&parameters.write()).expect("what was taken is taken again");
        assert_eq!(again, parameters);
    }
    if let Ok(results) = Results::read(&value) {
        assert!(results.streams.len() <= 256);
        let again = Results::read(&results.write()).expect("what was taken is taken again");
        let counts = |results: &Results| {
            let streams = results.streams.iter();
            streams
                .map(|stream| (stream.id, stream.bytes, stream.retransmits, stream.packets, stream.lost))
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(&again), counts(&results));
        assert_eq!(again.output, results.output);
    }
}
