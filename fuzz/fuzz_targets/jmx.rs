//! Test plans of JMeter, from files that anybody may have written.
#![no_main]

use fathom_import::Format;

#[path = "../checks/import.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::imported(bytes, Format::Jmx));
