//! Replies to probes, from bytes that any host or router on the way may have sent.
#![no_main]

#[path = "../checks/replies.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::replies(bytes));
