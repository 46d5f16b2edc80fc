//! What must hold for every body that claims to be packed.
//!
//! Shared by the fuzz target and by the test of `app` that runs the corpus.

use fathom_scenario::execution::{HttpMessage, Unpacker};

/// As much as is kept of a body.
const BODY_MAX: usize = 16 << 20;
const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

/// The first byte says how the rest is packed; what was unpacked before changes nothing.
pub(crate) fn unpack(bytes: &[u8]) {
    let Some((way, packed)) = bytes.split_first() else { return };
    let coding = CODINGS[usize::from(*way) % CODINGS.len()];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n");
    let (answer, mut scratch) = ([head.as_bytes(), packed].concat(), Vec::new());
    let message = HttpMessage::read(&answer, &mut scratch);
    let mut unpacker = Unpacker::default();
    let first = unpacker.body(message).map(<[u8]>::to_vec);
    assert!(first.as_ref().is_ok_and(|body| body.len() <= BODY_MAX) || first.is_err());
    assert_eq!(unpacker.body(message), first.as_deref().map_err(|unfit| *unfit), "{}", bytes.escape_ascii());
}
