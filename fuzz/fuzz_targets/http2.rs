//! Conversations of HTTP/2, as any client and server may have them.
#![no_main]

#[path = "../checks/http2.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::http2(bytes));
