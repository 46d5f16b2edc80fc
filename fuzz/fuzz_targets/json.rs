//! Bodies that users look for values in, from servers that may send anything.
#![no_main]

#[path = "../checks/json.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::json(bytes));
