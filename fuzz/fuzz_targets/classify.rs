//! IP packets, from bytes that anyone may have sent to a load balancer.
#![no_main]

#[path = "../checks/classify.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::classify(bytes));
