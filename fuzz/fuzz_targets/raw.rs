//! Captures of datagrams and connections, as any hosts may have made them.
#![no_main]

#[path = "../checks/raw.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::raw(bytes));
