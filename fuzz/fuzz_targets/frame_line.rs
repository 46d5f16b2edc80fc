//! Lines that describe frames, as anybody may have written them.
#![no_main]

#[path = "../checks/frame_line.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::frame_line(bytes));
