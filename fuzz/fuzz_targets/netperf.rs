//! Control messages of netperf, from whoever connects to the port.
#![no_main]

#[path = "../checks/netperf.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::message(bytes));
