//! What pktgen says, what it is asked, and what it sends.
#![no_main]

#[path = "../checks/pktgen.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::pktgen(bytes));
