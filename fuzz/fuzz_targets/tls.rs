//! Captures of connections over TLS with their secrets, as any hosts may have made them.
#![no_main]

#[path = "../checks/tls.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::tls(bytes));
