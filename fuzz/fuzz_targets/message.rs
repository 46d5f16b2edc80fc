//! Answers as users look into them, from servers that may send anything.
#![no_main]

#[path = "../checks/message.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::message(bytes));
