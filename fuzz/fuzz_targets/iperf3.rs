//! Control messages of iperf3, from whoever connects to the port.
#![no_main]

#[path = "../checks/iperf3.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::message(bytes));
