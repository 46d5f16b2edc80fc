//! Access logs, as any servers may have written them.
#![no_main]

#[path = "../checks/access_log.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::access_log(bytes));
