//! Captures of connections, as any hosts may have made them.
#![no_main]

#[path = "../checks/traffic.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::traffic(bytes));
