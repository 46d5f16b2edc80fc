//! Chunked bodies, from bytes that any server may have sent.
#![no_main]

#[path = "../checks/chunked.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::chunked(bytes));
