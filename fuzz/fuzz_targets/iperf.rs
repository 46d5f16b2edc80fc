//! Messages of iperf 2, from whoever sends to the port.
#![no_main]

#[path = "../checks/iperf.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::message(bytes));
