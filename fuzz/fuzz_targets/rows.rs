//! Data sets of scenarios, from files that anybody may have written.
#![no_main]

#[path = "../checks/rows.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::rows(bytes));
