//! Answers to a request for a tunnel, from bytes that any proxy may have sent.
#![no_main]

#[path = "../checks/tunnel.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::tunnel(bytes));
