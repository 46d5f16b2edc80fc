//! What must hold for every sequence of bytes that a decoder of frames is given.
//!
//! Shared by the fuzz target and by the test of `fleet` that runs the corpus.

use fathom_fleet::protocol::{
    Decoder, Frame, FrameError, FromAgent, HEADER_LEN, Preamble, ToAgent, encode, read, write,
};

/// Small enough that a fuzzer finds what lies beyond it.
const LIMIT: usize = 2000;

/// Decodes the bytes whole and in pieces, which must give the same, and reads every frame as a message of either side.
pub(crate) fn frames(bytes: &[u8]) {
    let (whole, error) = decode(bytes, bytes.len().max(1));
    for piece in [1, 7, HEADER_LEN] {
        assert_eq!(decode(bytes, piece), (whole.clone(), error.clone()), "in pieces of {piece}");
    }
    let mut again = Vec::new();
    for frame in &whole {
        assert!(frame.payload.len() <= LIMIT, "{} bytes", frame.payload.len());
        again.extend(encode(frame.version, &frame.payload, LIMIT).expect("what was accepted can be written"));
        if let Ok(message) = read::<ToAgent>(frame) {
            write(&message).expect("what was read can be written");
        }
        if let Ok(message) = read::<FromAgent>(frame) {
            write(&message).expect("what was read can be written");
        }
    }
    assert!(bytes.starts_with(&again), "frames are the bytes they came from");
    let rest = skip_text(bytes, bytes.len().max(1));
    for piece in [1, 7, HEADER_LEN] {
        assert_eq!(skip_text(bytes, piece), rest, "text before the first frame, in pieces of {piece}");
    }
    assert!(rest.is_none_or(|rest| bytes.ends_with(&rest)), "what follows the text is the rest of the bytes");
}

/// Returns the bytes from the first greeting on.
fn skip_text(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut preamble = Preamble::default();
    let mut pieces = bytes.chunks(piece);
    let mut rest = pieces.find_map(|piece| preamble.push(piece).ok().flatten())?;
    pieces.for_each(|piece| rest.extend_from_slice(piece));
    Some(rest)
}

fn decode(bytes: &[u8], piece: usize) -> (Vec<Frame>, Option<FrameError>) {
    let (mut decoder, mut frames) = (Decoder::new(LIMIT), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}
