//! Cookies, from servers that may set anything.
#![no_main]

#[path = "../checks/cookies.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::cookies(bytes));
