//! Requests and answers that pass through the recording proxy.
#![no_main]

#[path = "../checks/recorded.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::recorded(bytes));
