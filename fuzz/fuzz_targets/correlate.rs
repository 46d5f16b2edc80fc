//! Pairs of recordings, from files that anybody may have written, with answers that any server may have sent.
#![no_main]

#[path = "../checks/correlate.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::correlated(bytes));
