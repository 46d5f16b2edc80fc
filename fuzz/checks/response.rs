//! What must hold for every sequence of bytes that a reader of responses is given.
//!
//! Shared by the fuzz target and by the test of `http` that runs the corpus.

use fathom_http::h1::{HeadReader, Malformed, Method, ResponseProgress, ResponseReader, ResponseSummary};

/// What a series of bytes turned out to be: answers with where they end, and what was wrong then.
type Followed = (Vec<(ResponseSummary, usize)>, Option<Malformed>);

/// What is done with the rest of a body of known length.
#[derive(Clone, Copy)]
enum Rest {
    Read,
    PassedOver,
}

/// Reads responses one after another, whole and in pieces and with bodies passed over, which must all give the same.
pub(crate) fn response(bytes: &[u8]) {
    for method in [Method::Get, Method::Head] {
        let whole = follow(bytes, bytes.len().max(1), method, Rest::Read);
        let ends = whole.0.iter().map(|(_, end)| *end);
        assert!(ends.is_sorted() && whole.0.iter().all(|(_, end)| *end <= bytes.len()), "{whole:?}");
        for piece in [1, 2, 3, 7, 64] {
            for rest in [Rest::Read, Rest::PassedOver] {
                assert_eq!(follow(bytes, piece, method, rest), whole, "in pieces of {piece} bytes");
            }
        }
    }
}

fn follow(bytes: &[u8], piece: usize, method: Method, rest: Rest) -> Followed {
    let (mut reader, mut heads) = (ResponseReader::default(), HeadReader::new(method));
    let (mut answers, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if matches!(rest, Rest::PassedOver) && reader.body_bytes_left() > 0 {
            let step = usize::try_from(reader.body_bytes_left()).unwrap_or(usize::MAX).min(bytes.len() - at);
            at += step;
            answers.extend(reader.skip(step as u64).map(|answer| (answer, at)));
            continue;
        }
        let end = bytes.len().min(at + piece);
        match reader.take(&bytes[at..end], &mut heads) {
            Ok(ResponseProgress::Partial) => at = end,
            Ok(ResponseProgress::Complete { used, answer }) => {
                assert!(used > 0 && used <= end - at, "{used} bytes of {}", end - at);
                at += used;
                answers.push((answer, at));
            }
            Err(malformed) => return (answers, Some(malformed)),
        }
    }
    (answers, None)
}
