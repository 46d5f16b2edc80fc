//! Captures, as any program may have written them.
#![no_main]

#[path = "../checks/capture.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::capture(bytes));
