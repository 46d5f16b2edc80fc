//! Packed bodies, from servers that may send anything.
#![no_main]

#[path = "../checks/unpack.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::unpack(bytes));
