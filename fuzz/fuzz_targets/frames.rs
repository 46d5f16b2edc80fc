//! Frames of the agents' protocol, from bytes that anyone may have sent.
#![no_main]

#[path = "../checks/frames.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::frames(bytes));
