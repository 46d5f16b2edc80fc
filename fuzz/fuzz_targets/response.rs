//! Responses, from bytes that any server may have sent.
#![no_main]

#[path = "../checks/response.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::response(bytes));
