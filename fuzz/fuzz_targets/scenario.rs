//! Scenarios, from texts that anybody may have written.
#![no_main]

#[path = "../checks/scenario.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::scenario(bytes));
