//! The seeds of the fuzz target, and inputs that fuzzing found.

use std::{fs, path::Path};

#[path = "../../../../../fuzz/checks/frames.rs"]
mod check;

use fathom_fleet::protocol::{Decoder, FROM_AGENT_MAX, FromAgent, ToAgent, read};

#[test]
fn every_seed_of_the_frame_decoder_is_decoded_the_same_whole_and_in_pieces() {
    for seed in fathom_testkit::corpus::seeds("frames", 16) {
        check::frames(&seed);
    }
}

#[test]
fn the_seeds_hold_messages_of_this_version() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/frames");
    let spoken =
        ["hello_agent", "hello_controller", "clock", "prepare", "trial", "ready", "interval", "outcome", "failed"];
    for name in spoken.into_iter().chain(["waited", "environment", "counters"]) {
        let mut decoder = Decoder::new(FROM_AGENT_MAX);
        decoder.push(&fs::read(folder.join(name)).unwrap());
        while let Some(frame) = decoder.frame().unwrap() {
            let (to, from) = (read::<ToAgent>(&frame), read::<FromAgent>(&frame));
            assert!(to.is_ok() || from.is_ok(), "{name}: {to:?}, {from:?}");
        }
    }
}
